-- Agents, tools and loops: what people make and share.

create table public.secrets (
  id uuid primary key default gen_random_uuid(),
  owner_id uuid not null default auth.uid() references auth.users (id) on delete cascade,
  name text not null check (name ~ '^[A-Za-z_][A-Za-z0-9_]{0,63}$'),
  -- AES-256-GCM, the key lies outside the database; nonce is 12 bytes, the tag is the end of sealed.
  nonce bytea not null check (octet_length(nonce) = 12),
  sealed bytea not null,
  key_id text not null,
  created_at timestamptz not null default now(),
  unique (owner_id, name)
);
comment on table public.secrets is 'Values that tools and evaluators refer to as ${NAME}; never returned.';

create table public.tools (
  id uuid primary key default gen_random_uuid(),
  owner_id uuid default auth.uid() references auth.users (id) on delete cascade,
  name text not null check (length(name) between 1 and 64),
  kind text not null check (kind in ('http', 'mcp', 'builtin')),
  spec jsonb not null default '{}',
  is_builtin boolean not null default false,
  active boolean not null default true,
  visibility text not null default 'private' check (visibility in ('private', 'workspace')),
  version integer not null default 1,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  check (is_builtin = (kind = 'builtin') and is_builtin = (owner_id is null))
);
create unique index tools_builtin_name on public.tools (name) where is_builtin;
create index tools_owner on public.tools (owner_id, created_at desc, id desc);

create table public.agents (
  id uuid primary key default gen_random_uuid(),
  owner_id uuid not null default auth.uid() references auth.users (id) on delete cascade,
  name text not null check (length(name) between 1 and 200),
  spec jsonb not null,
  tool_ids uuid[] not null default '{}',
  visibility text not null default 'private' check (visibility in ('private', 'workspace')),
  version integer not null default 1,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);
create index agents_owner on public.agents (owner_id, created_at desc, id desc);

create table public.loops (
  id uuid primary key default gen_random_uuid(),
  owner_id uuid not null default auth.uid() references auth.users (id) on delete cascade,
  name text not null check (length(name) between 1 and 200),
  agent_id uuid not null references public.agents (id) on delete restrict,
  -- goal, evaluator, holdout, direction, stop, attempts, history, prices: a loop file without its name and agent.
  spec jsonb not null,
  -- What one iteration can cost at worst, in USD, as computed when the loop was saved.
  worst_case_usd numeric not null check (worst_case_usd >= 0),
  visibility text not null default 'private' check (visibility in ('private', 'workspace')),
  version integer not null default 1,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);
create index loops_owner on public.loops (owner_id, created_at desc, id desc);
create index loops_agent on public.loops (agent_id);
create index loops_shared on public.loops (created_at desc, id desc) where visibility = 'workspace';

create trigger tools_touch before update on public.tools for each row execute function private.touch();
create trigger agents_touch before update on public.agents for each row execute function private.touch();
create trigger loops_touch before update on public.loops for each row execute function private.touch();

revoke all on public.secrets, public.tools, public.agents, public.loops from public, anon, authenticated, service_role;
grant select (id, owner_id, name, created_at), insert, delete on public.secrets to authenticated;
grant update (nonce, sealed, key_id) on public.secrets to authenticated;
grant select, insert, update, delete on public.tools, public.agents, public.loops to authenticated;
grant select, insert, update, delete on public.secrets, public.tools, public.agents, public.loops to service_role;

alter table public.secrets enable row level security;
alter table public.tools enable row level security;
alter table public.agents enable row level security;
alter table public.loops enable row level security;

create policy secrets_own on public.secrets for all to authenticated
  using (owner_id = (select auth.uid())) with check (owner_id = (select auth.uid()));

create policy tools_read on public.tools for select to authenticated
  using (
    owner_id = (select auth.uid())
    or ((visibility = 'workspace' or is_builtin) and (select private.is_member()))
    or (select private.is_admin())
  );
create policy tools_insert on public.tools for insert to authenticated
  with check (owner_id = (select auth.uid()) and not is_builtin);
create policy tools_update on public.tools for update to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()))
  with check ((owner_id = (select auth.uid()) and not is_builtin) or (select private.is_admin()));
create policy tools_delete on public.tools for delete to authenticated
  using (not is_builtin and (owner_id = (select auth.uid()) or (select private.is_admin())));

create policy agents_read on public.agents for select to authenticated
  using (
    owner_id = (select auth.uid())
    or (visibility = 'workspace' and (select private.is_member()))
    or (select private.is_admin())
  );
create policy agents_insert on public.agents for insert to authenticated
  with check (owner_id = (select auth.uid()));
create policy agents_update on public.agents for update to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()))
  with check (owner_id = (select auth.uid()) or (select private.is_admin()));
create policy agents_delete on public.agents for delete to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()));

create policy loops_read on public.loops for select to authenticated
  using (
    owner_id = (select auth.uid())
    or (visibility = 'workspace' and (select private.is_member()))
    or (select private.is_admin())
  );
-- The agent must be one that the writer can read: the sub-select is itself under that table's policy.
create policy loops_insert on public.loops for insert to authenticated
  with check (owner_id = (select auth.uid()) and exists (select 1 from public.agents a where a.id = agent_id));
create policy loops_update on public.loops for update to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()))
  with check (
    (owner_id = (select auth.uid()) or (select private.is_admin()))
    and exists (select 1 from public.agents a where a.id = agent_id)
  );
create policy loops_delete on public.loops for delete to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()));

-- Nobody gives a row to somebody else.
create function private.keep_owner() returns trigger
language plpgsql set search_path = '' as $$
begin
  if new.owner_id is distinct from old.owner_id then
    raise exception 'the owner can''t be changed' using errcode = '42501';
  end if;
  return new;
end $$;
revoke all on function private.keep_owner() from public;
create trigger tools_keep_owner before update on public.tools for each row execute function private.keep_owner();
create trigger agents_keep_owner before update on public.agents for each row execute function private.keep_owner();
create trigger loops_keep_owner before update on public.loops for each row execute function private.keep_owner();
