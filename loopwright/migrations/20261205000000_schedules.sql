-- Schedules: runs that start by the clock. What is due is written down once for each schedule and time.

create table public.schedules (
  id uuid primary key default gen_random_uuid(),
  -- Null once its owner is gone: then it is disabled, and admins see why.
  owner_id uuid default auth.uid() references auth.users (id) on delete set null,
  name text not null check (length(name) between 1 and 200),
  -- What it starts: a loop, or an agent for one turn. Both null once that is gone.
  loop_id uuid references public.loops (id) on delete set null,
  agent_id uuid references public.agents (id) on delete set null,
  -- What its runs have otherwise than the loop: goal, budget_usd, max_iterations, max_seconds, attempts, model.
  wanted jsonb not null default '{}',
  cron text not null check (length(cron) between 1 and 200),
  zone text not null check (length(zone) between 1 and 64),
  jitter_seconds integer not null default 0 check (jitter_seconds between 0 and 3600),
  backfill text not null default 'one' check (backfill in ('no', 'one', 'all')),
  overlap text not null default 'skip' check (overlap in ('skip', 'queue', 'parallel')),
  max_failures integer not null default 5 check (max_failures between 1 and 100),
  status text not null default 'active' check (status in ('active', 'paused', 'disabled')),
  -- Why it is disabled.
  notice text not null default '',
  -- The next time that has not been decided yet; null while nothing is due any more.
  next_due_at timestamptz,
  -- Failures before this moment don't count.
  resumed_at timestamptz not null default now(),
  version integer not null default 1,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  check (loop_id is null or agent_id is null),
  check (status <> 'active' or (owner_id is not null and (loop_id is not null or agent_id is not null)))
);
create index schedules_owner on public.schedules (owner_id, created_at desc, id desc);
create index schedules_loop on public.schedules (loop_id);
create index schedules_agent on public.schedules (agent_id);
create index schedules_due on public.schedules (next_due_at) where status = 'active';

create table public.schedule_firings (
  schedule_id uuid not null references public.schedules (id) on delete cascade,
  due_at timestamptz not null,
  -- When it may start: the due time and the jitter.
  start_at timestamptz not null,
  outcome text not null default 'waiting' check (outcome in ('waiting', 'started', 'skipped', 'missed', 'failed')),
  -- Why, where it did not simply start.
  reason text not null default '',
  run_id text references public.loop_runs (id) on delete set null,
  created_at timestamptz not null default now(),
  primary key (schedule_id, due_at)
);
comment on table public.schedule_firings is 'One row for each time that a schedule was due, and what came of it.';
create index schedule_firings_waiting on public.schedule_firings (start_at) where outcome = 'waiting';
create index schedule_firings_run on public.schedule_firings (run_id) where run_id is not null;

-- The version is for what people edit; what the clock changes is none of theirs.
create function private.touch_schedule() returns trigger
language plpgsql set search_path = '' as $$
begin
  if (to_jsonb(new) - '{next_due_at,version,updated_at}'::text[])
    is distinct from (to_jsonb(old) - '{next_due_at,version,updated_at}'::text[]) then
    new.updated_at := now();
    new.version := old.version + 1;
  end if;
  return new;
end $$;
create trigger schedules_touch before update on public.schedules
  for each row execute function private.touch_schedule();

-- Nobody gives a schedule to somebody else; that its owner goes is no gift.
create function private.keep_schedule_owner() returns trigger
language plpgsql set search_path = '' as $$
begin
  if new.owner_id is distinct from old.owner_id and new.owner_id is not null then
    raise exception 'the owner can''t be changed' using errcode = '42501';
  end if;
  return new;
end $$;
create trigger schedules_keep_owner before update on public.schedules
  for each row execute function private.keep_schedule_owner();

-- Disables schedules, says why, and tells the scheduler.
create function private.disable_schedules(of_loop uuid, of_agent uuid, of_owner uuid, why text) returns void
language plpgsql security definer set search_path = '' as $$
declare
  s record;
begin
  for s in
    update public.schedules x set status = 'disabled', notice = why, next_due_at = null
    where x.status <> 'disabled' and (x.loop_id = of_loop or x.agent_id = of_agent or x.owner_id = of_owner)
    returning x.id, x.owner_id, x.name
  loop
    insert into public.activity_log (user_id, door, action, subject, detail)
    values (s.owner_id, 'schedule', 'schedule_disabled', 'schedule:' || s.id,
      jsonb_build_object('name', s.name, 'reason', why));
  end loop;
end $$;

create function private.schedules_lose_target() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  if tg_table_name = 'loops' then
    perform private.disable_schedules(old.id, null, null, 'its loop ' || quote_literal(old.name) || ' was deleted');
  elsif tg_table_name = 'agents' then
    perform private.disable_schedules(null, old.id, null, 'its agent ' || quote_literal(old.name) || ' was deleted');
  else
    perform private.disable_schedules(null, null, old.id, 'its owner is not of this workspace any more');
  end if;
  return old;
end $$;
create trigger loops_schedules before delete on public.loops
  for each row execute function private.schedules_lose_target();
create trigger agents_schedules before delete on public.agents
  for each row execute function private.schedules_lose_target();
create trigger profiles_schedules before delete on public.profiles
  for each row execute function private.schedules_lose_target();

-- The run and the note that it was started become durable together: at most one run for a time, and none without a note.
create function private.note_started(of_schedule uuid, of_due timestamptz, of_run text) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
  update public.schedule_firings f set outcome = 'started', run_id = of_run
  where f.schedule_id = of_schedule and f.due_at = of_due and f.outcome = 'waiting'
    and exists (select from public.schedules s where s.id = of_schedule and s.owner_id = (select auth.uid()))
    and exists (select from public.loop_runs r where r.id = of_run and r.owner_id = (select auth.uid()));
  return found;
end $$;

revoke all on function
  private.touch_schedule(), private.keep_schedule_owner(), private.schedules_lose_target(),
  private.disable_schedules(uuid, uuid, uuid, text), private.note_started(uuid, timestamptz, text) from public;
grant execute on function private.note_started(uuid, timestamptz, text) to authenticated;

revoke all on public.schedules, public.schedule_firings from public, anon, authenticated, service_role;
grant select, delete on public.schedules to authenticated;
grant insert (name, loop_id, agent_id, wanted, cron, zone, jitter_seconds, backfill, overlap, max_failures, status,
  next_due_at) on public.schedules to authenticated;
grant update (name, loop_id, agent_id, wanted, cron, zone, jitter_seconds, backfill, overlap, max_failures, status,
  notice, next_due_at, resumed_at) on public.schedules to authenticated;
grant select on public.schedule_firings to authenticated;
grant select, insert, update, delete on public.schedules, public.schedule_firings to service_role;
alter table public.schedules enable row level security;
alter table public.schedule_firings enable row level security;

create policy schedules_read on public.schedules for select to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()));
-- What it starts must be something that the writer can read: the sub-selects are under those tables' policies.
create policy schedules_insert on public.schedules for insert to authenticated
  with check (
    owner_id = (select auth.uid()) and (select private.is_member())
    and (loop_id is null or exists (select 1 from public.loops l where l.id = loop_id))
    and (agent_id is null or exists (select 1 from public.agents a where a.id = agent_id))
  );
create policy schedules_update on public.schedules for update to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()))
  with check (
    (owner_id = (select auth.uid()) or (select private.is_admin()))
    and (loop_id is null or exists (select 1 from public.loops l where l.id = loop_id))
    and (agent_id is null or exists (select 1 from public.agents a where a.id = agent_id))
  );
create policy schedules_delete on public.schedules for delete to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()));
create policy schedule_firings_read on public.schedule_firings for select to authenticated
  using (exists (select 1 from public.schedules s where s.id = schedule_id));
