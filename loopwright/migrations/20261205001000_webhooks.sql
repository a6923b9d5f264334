-- Webhooks: messages from elsewhere that start a loop or an agent as the webhook's owner.

create table public.webhooks (
  id uuid primary key default gen_random_uuid(),
  owner_id uuid not null default auth.uid() references auth.users (id) on delete cascade,
  name text not null check (length(name) between 1 and 200),
  loop_id uuid references public.loops (id) on delete cascade,
  agent_id uuid references public.agents (id) on delete cascade,
  -- What its runs have otherwise than the loop: goal, budget_usd, max_iterations, max_seconds, attempts, model.
  wanted jsonb not null default '{}',
  -- Whether the agent may call its tools, with what a stranger's message made of it.
  allow_tools boolean not null default false,
  active boolean not null default true,
  -- The secret that messages are signed with, sealed like those in `secrets`.
  nonce bytea not null check (octet_length(nonce) = 12),
  sealed bytea not null,
  key_id text not null,
  version integer not null default 1,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  check ((loop_id is null) <> (agent_id is null))
);
create index webhooks_owner on public.webhooks (owner_id, created_at desc, id desc);
create index webhooks_loop on public.webhooks (loop_id);
create index webhooks_agent on public.webhooks (agent_id);
create trigger webhooks_touch before update on public.webhooks for each row execute function private.touch();
create trigger webhooks_keep_owner before update on public.webhooks for each row execute function private.keep_owner();

create table public.webhook_messages (
  webhook_id uuid not null references public.webhooks (id) on delete cascade,
  message_id text not null check (length(message_id) between 1 and 200),
  run_id text references public.loop_runs (id) on delete set null,
  received_at timestamptz not null default now(),
  primary key (webhook_id, message_id)
);
comment on table public.webhook_messages is 'Messages that started a run: none starts a second one.';
create index webhook_messages_recent on public.webhook_messages (webhook_id, received_at desc);
create index webhook_messages_run on public.webhook_messages (run_id) where run_id is not null;

revoke all on public.webhooks, public.webhook_messages from public, anon, authenticated, service_role;
grant select (id, owner_id, name, loop_id, agent_id, wanted, allow_tools, active, version, created_at, updated_at),
  insert (id, name, loop_id, agent_id, wanted, allow_tools, active, nonce, sealed, key_id),
  update (name, loop_id, agent_id, wanted, allow_tools, active, nonce, sealed, key_id),
  delete on public.webhooks to authenticated;
grant select on public.webhook_messages to authenticated;
grant insert (webhook_id, message_id, run_id) on public.webhook_messages to authenticated;
grant select, insert, update, delete on public.webhooks, public.webhook_messages to service_role;
alter table public.webhooks enable row level security;
alter table public.webhook_messages enable row level security;

create policy webhooks_read on public.webhooks for select to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()));
create policy webhooks_insert on public.webhooks for insert to authenticated
  with check (
    owner_id = (select auth.uid()) and (select private.is_member())
    and (loop_id is null or exists (select 1 from public.loops l where l.id = loop_id))
    and (agent_id is null or exists (select 1 from public.agents a where a.id = agent_id))
  );
create policy webhooks_update on public.webhooks for update to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()))
  with check (
    (owner_id = (select auth.uid()) or (select private.is_admin()))
    and (loop_id is null or exists (select 1 from public.loops l where l.id = loop_id))
    and (agent_id is null or exists (select 1 from public.agents a where a.id = agent_id))
  );
create policy webhooks_delete on public.webhooks for delete to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()));
create policy webhook_messages_read on public.webhook_messages for select to authenticated
  using (exists (select 1 from public.webhooks w where w.id = webhook_id));
create policy webhook_messages_insert on public.webhook_messages for insert to authenticated
  with check (exists (select 1 from public.webhooks w where w.id = webhook_id and w.owner_id = (select auth.uid())));
