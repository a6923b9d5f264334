-- Endpoints: addresses elsewhere that are told when runs end. What is to be told becomes durable with the run's end.

-- What a user may do who is of the workspace; null for who isn't, or was banned or deleted.
create function private.role_of(of_user uuid) returns text
language sql stable security definer set search_path = '' as $$
  select p.role from public.profiles p join auth.users u on u.id = p.id
  where p.id = of_user and u.deleted_at is null and (u.banned_until is null or u.banned_until <= now())
$$;

create table public.endpoints (
  id uuid primary key default gen_random_uuid(),
  owner_id uuid not null default auth.uid() references auth.users (id) on delete cascade,
  name text not null check (length(name) between 1 and 200),
  url text not null check (length(url) between 1 and 2000),
  events text[] not null default '{run.finished}'
    check (cardinality(events) > 0 and events <@ array['run.finished']),
  -- Only runs of this loop; null for all.
  loop_id uuid references public.loops (id) on delete cascade,
  -- Whose runs: the owner's own, or everybody's, which is for admins.
  scope text not null default 'own' check (scope in ('own', 'workspace')),
  active boolean not null default true,
  -- Why it was switched off, where nobody did it by hand.
  notice text not null default '',
  -- The secret that messages are signed with, sealed like those in `secrets`; and the one before it, while it holds.
  nonce bytea not null check (octet_length(nonce) = 12),
  sealed bytea not null,
  key_id text not null,
  old_nonce bytea check (octet_length(old_nonce) = 12),
  old_sealed bytea,
  old_key_id text,
  old_until timestamptz,
  version integer not null default 1,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  check ((old_until is null) = (old_sealed is null))
);
comment on table public.endpoints is 'Addresses elsewhere that are told when runs end.';
create index endpoints_owner on public.endpoints (owner_id, created_at desc, id desc);
create index endpoints_loop on public.endpoints (loop_id) where loop_id is not null;
create index endpoints_workspace on public.endpoints (id) where active and scope = 'workspace';
create trigger endpoints_touch before update on public.endpoints for each row execute function private.touch();
create trigger endpoints_keep_owner before update on public.endpoints
  for each row execute function private.keep_owner();

create table public.deliveries (
  -- Also the `webhook-id` that receivers tell repeats by.
  id uuid primary key default gen_random_uuid(),
  endpoint_id uuid not null references public.endpoints (id) on delete cascade,
  -- Whose run it tells of.
  owner_id uuid not null references auth.users (id) on delete cascade,
  run_id text references public.loop_runs (id) on delete set null,
  event text not null check (event in ('run.finished', 'endpoint.test')),
  -- What is sent, to the letter: it is signed.
  payload text not null,
  state text not null default 'waiting' check (state in ('waiting', 'delivered', 'failed')),
  -- How often it was tried, and how often since somebody last asked for it.
  attempts integer not null default 0,
  tries integer not null default 0,
  next_at timestamptz default now(),
  -- A process tries it, or died while it did; after this moment others may.
  taken_until timestamptz,
  created_at timestamptz not null default now(),
  check ((state = 'waiting') = (next_at is not null))
);
comment on table public.deliveries is 'What endpoints are told: made in the transaction that ends the run.';
create index deliveries_endpoint on public.deliveries (endpoint_id, created_at desc, id desc);
create index deliveries_due on public.deliveries (next_at) where state = 'waiting';
create index deliveries_waiting on public.deliveries (endpoint_id, next_at) where state = 'waiting';
create index deliveries_run on public.deliveries (run_id) where run_id is not null;
create index deliveries_owner on public.deliveries (owner_id);
create index deliveries_old on public.deliveries (created_at);

create table public.delivery_attempts (
  delivery_id uuid not null references public.deliveries (id) on delete cascade,
  number integer not null check (number > 0),
  at timestamptz not null,
  seconds double precision not null check (seconds >= 0),
  -- Null where no answer came.
  status integer,
  -- The beginning of the answer, or why there was none.
  answer text not null default '',
  error text not null default '',
  primary key (delivery_id, number)
);

-- Whether an endpoint may be told of runs: its owner is of the workspace, and an admin where it is told of all runs.
create function private.may_listen(of_user uuid, with_scope text) returns boolean
language sql stable security definer set search_path = '' as $$
  select coalesce(private.role_of(of_user) = 'admin' or (with_scope = 'own' and private.role_of(of_user) is not null), false)
$$;

create function private.iso(moment timestamptz) returns text
language sql immutable set search_path = '' as $$
  select to_char(moment at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;

-- What is told of a run's end.
create function private.told_of_run(r public.loop_runs) returns jsonb
language sql stable security definer set search_path = '' as $$
  select jsonb_build_object(
    'type', 'run.finished',
    'timestamp', private.iso(r.finished_at),
    'data', jsonb_build_object(
      'run_id', r.id, 'loop_id', r.loop_id, 'loop_name', r.loop_name, 'agent_id', r.agent_id, 'owner_id', r.owner_id,
      'door', r.door, 'paid_by', r.paid_by, 'stop_reason', r.stop_reason, 'sentence', left(r.sentence, 2000),
      'error', left(r.error, 2000), 'iterations', r.iterations, 'spent_usd', r.spent_usd::text,
      'cap_usd', r.cap_usd::text, 'created_at', private.iso(r.created_at), 'started_at', private.iso(r.started_at),
      'finished_at', private.iso(r.finished_at),
      'best', (
        select jsonb_build_object(
          'attempt', i.attempt, 'number', i.number, 'score', i.score,
          'text', left(i.data -> 'candidate' ->> 'text', 10000),
          'is_whole', coalesce(length(i.data -> 'candidate' ->> 'text') <= 10000, true))
        from public.loop_iterations i
        where i.run_id = r.id and i.attempt = r.best_attempt and i.number = r.best_iteration)))
$$;

create function private.tell_endpoints() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
  told text;
  listener uuid;
begin
  for listener in
    select e.id from public.endpoints e
    where e.active and (e.owner_id = new.owner_id or e.scope = 'workspace') and 'run.finished' = any(e.events)
      and (e.loop_id is null or e.loop_id = new.loop_id) and private.may_listen(e.owner_id, e.scope)
  loop
    told := coalesce(told, private.told_of_run(new)::text);
    insert into public.deliveries (endpoint_id, owner_id, run_id, event, payload)
    values (listener, new.owner_id, new.id, 'run.finished', told);
  end loop;
  return null;
end $$;
-- What ends when a conversation's message is answered is no run.
create trigger loop_runs_tell after update of status on public.loop_runs
  for each row when (new.status = 'finished' and old.status <> 'finished' and not new.is_thread) execute function private.tell_endpoints();

-- Has a test sent to an endpoint of the caller's; for an admin, to anybody's. Returns the delivery.
create function private.send_test(to_endpoint uuid) returns uuid
language plpgsql volatile security definer set search_path = '' as $$
declare
  made uuid;
begin
  insert into public.deliveries (endpoint_id, owner_id, event, payload)
  select e.id, e.owner_id, 'endpoint.test', jsonb_build_object(
    'type', 'endpoint.test', 'timestamp', private.iso(now()),
    'data', jsonb_build_object('endpoint_id', e.id, 'name', e.name))::text
  from public.endpoints e
  where e.id = to_endpoint and e.active and private.is_member()
    and (e.owner_id = auth.uid() or private.is_admin())
  returning id into made;
  return made;
end $$;

-- Gives an endpoint of the caller's another secret; the one before it holds for a while. For an admin, anybody's.
create function private.renew_endpoint_secret(
  endpoint uuid, new_nonce bytea, new_sealed bytea, new_key_id text, old_seconds integer
) returns void
language sql volatile security definer set search_path = '' as $$
  update public.endpoints e
  set old_nonce = e.nonce, old_sealed = e.sealed, old_key_id = e.key_id,
    old_until = now() + make_interval(secs => old_seconds), nonce = new_nonce, sealed = new_sealed, key_id = new_key_id
  where e.id = endpoint and private.is_member() and (e.owner_id = auth.uid() or private.is_admin())
$$;

-- Has something sent once more, from the beginning of the plan; it keeps its id. Whether there was something to send.
create function private.send_again(delivery uuid) returns boolean
language plpgsql volatile security definer set search_path = '' as $$
begin
  update public.deliveries d set state = 'waiting', tries = 0, next_at = now()
  from public.endpoints e
  where d.id = delivery and e.id = d.endpoint_id and e.active
    and (private.is_admin() or (private.is_member() and e.owner_id = auth.uid() and d.owner_id = auth.uid()));
  return found;
end $$;

revoke all on function
  private.role_of(uuid), private.may_listen(uuid, text), private.iso(timestamptz),
  private.told_of_run(public.loop_runs), private.tell_endpoints(), private.send_test(uuid), private.send_again(uuid),
  private.renew_endpoint_secret(uuid, bytea, bytea, text, integer)
  from public;
grant execute on function
  private.send_test(uuid), private.send_again(uuid), private.renew_endpoint_secret(uuid, bytea, bytea, text, integer)
  to authenticated;
grant execute on function private.may_listen(uuid, text) to service_role;

revoke all on public.endpoints, public.deliveries, public.delivery_attempts
  from public, anon, authenticated, service_role;
grant select (id, owner_id, name, url, events, loop_id, scope, active, notice, old_until, version, created_at,
    updated_at),
  insert (id, name, url, events, loop_id, scope, active, nonce, sealed, key_id),
  update (name, url, events, loop_id, scope, active, notice),
  delete on public.endpoints to authenticated;
grant select on public.deliveries, public.delivery_attempts to authenticated;
grant select, insert, update, delete on public.endpoints, public.deliveries, public.delivery_attempts to service_role;
alter table public.endpoints enable row level security;
alter table public.deliveries enable row level security;
alter table public.delivery_attempts enable row level security;

create policy endpoints_read on public.endpoints for select to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()));
create policy endpoints_insert on public.endpoints for insert to authenticated
  with check (
    owner_id = (select auth.uid()) and (select private.is_member())
    and (scope = 'own' or (select private.is_admin()))
    and (loop_id is null or exists (select 1 from public.loops l where l.id = loop_id))
  );
create policy endpoints_update on public.endpoints for update to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()))
  with check (
    (owner_id = (select auth.uid()) or (select private.is_admin()))
    and (scope = 'own' or (select private.is_admin()))
    and (loop_id is null or exists (select 1 from public.loops l where l.id = loop_id))
  );
create policy endpoints_delete on public.endpoints for delete to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()));
-- Who was an admin once may have an endpoint that was told of others' runs: those are not its owner's to read any more.
create policy deliveries_read on public.deliveries for select to authenticated
  using (
    exists (select 1 from public.endpoints e where e.id = endpoint_id)
    and (owner_id = (select auth.uid()) or (select private.is_admin()))
  );
create policy delivery_attempts_read on public.delivery_attempts for select to authenticated
  using (exists (select 1 from public.deliveries d where d.id = delivery_id));
