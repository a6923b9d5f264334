-- Builtins that start loops, and runs that another run pays for.

insert into public.tools (name, kind, is_builtin, owner_id, visibility, spec)
values
  ('start_loop', 'builtin', true, null, 'workspace',
    '{"description": "Starts a run of a stored loop. Its budget comes out of the run that starts it."}'),
  ('check_loop', 'builtin', true, null, 'workspace',
    '{"description": "Says how a run stands that start_loop started, and gives its best candidate."}'),
  ('list_loops', 'builtin', true, null, 'workspace',
    '{"description": "Lists the loops that may be started, with what they can cost."}')
on conflict do nothing;

alter table public.loop_runs
  -- Whose wallet holds this run's budget; what is left of it goes back at the end.
  add column paid_by text references public.loop_runs (id) on delete set null,
  -- How many runs stand above it: 0 for one that a person, a schedule or another program started.
  add column depth integer not null default 0 check (depth >= 0),
  -- The operation of the paying run that started it: one that is played again finds it by this.
  add column start_key text,
  -- The builtins that its agent had, and that were switched on, when it started.
  add column builtins text[] not null default '{loop_done}';
create unique index loop_runs_paid_by on public.loop_runs (paid_by, start_key) where paid_by is not null;

-- Which builtins an agent gets: those among its tools that are switched on, and `loop_done`.
create function private.builtins_of(agent uuid) returns text[]
language sql stable security definer set search_path = '' as $$
  select coalesce(array_agg(t.name order by t.name), '{}') from public.tools t
  where t.is_builtin and t.active
    and (t.name = 'loop_done' or exists (select 1 from public.agents a where a.id = agent and t.id = any(a.tool_ids)))
$$;

create function private.grant_builtins() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  new.builtins := private.builtins_of(new.agent_id);
  return new;
end $$;
create trigger loop_runs_builtins before insert on public.loop_runs
  for each row execute function private.grant_builtins();

-- Takes the builtins but `loop_done` from a run of the caller's that has not begun.
create function private.take_builtins(run text) returns void
language sql volatile security definer set search_path = '' as $$
  update public.loop_runs r set builtins = array(select unnest(r.builtins) intersect select 'loop_done')
  where r.id = run and r.owner_id = auth.uid() and r.event_seq = 0
$$;

-- Money that a run holds for runs that it started is in no request: it waits for a run's end, which may be far, and it
-- counts on the month as the other run spends it.
create or replace function private.in_flight(run text, of_owner uuid, of_month date) returns numeric
language sql stable security definer set search_path = '' as $$
  select coalesce(sum(w.reserved_usd), 0) from public.wallet_entries w
  where w.settled_at is null and w.role not in ('evaluator', 'run')
    and (w.run_id = run or (run is null and w.owner_id = of_owner and w.month = of_month))
$$;

-- Settles whole what is reserved still by executions up to an epoch: what it bought can't be known. What is held for a
-- run is settled by that run's end.
create or replace function private.settle_open(run text, up_to_epoch integer, tell boolean, why text) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  entry public.wallet_entries;
  settled integer := 0;
begin
  for entry in
    select * from public.wallet_entries w
    where w.run_id = run and w.settled_at is null and w.epoch <= up_to_epoch and w.role <> 'run'
    order by w.month, w.created_at, w.id
  loop
    perform private.book(entry.id, entry.reserved_usd, 'reserved', 0, 0, 0, 0);
    if tell then
      perform private.add_events(run, jsonb_build_array(jsonb_build_object(
        'type', 'money_settled',
        'charge', jsonb_build_object(
          'reservation', jsonb_build_object(
            'id', entry.id, 'amount', entry.reserved_usd::text, 'role', entry.role, 'model', entry.model,
            'attempt', entry.attempt, 'iteration', entry.iteration),
          'amount', entry.reserved_usd::text, 'basis', 'reserved', 'tokens', '{}'::jsonb, 'why', why),
        'wallet', null, 'response', null)), null);
    end if;
    settled := settled + 1;
  end loop;
  return settled;
end $$;

-- Starts a run on another one's wallet, once for each key: the whole budget of the new run is set aside there, in the
-- statement that makes it. Returns 'ok' and the run, or why not: 'off' (the builtin is switched off), 'deep' (the
-- paying run was itself started so), 'many' (the iteration has started enough), 'refused' (it does not fit; what is
-- free is returned).
create function private.start_child(
  payer text, at_epoch integer, call text, again boolean, key text, child text, of_loop uuid, named text,
  of_agent uuid, with_spec jsonb, with_goal text, cap numeric, keep numeric, in_folder text, max_depth integer,
  max_starts integer, in_attempt integer, in_iteration integer,
  out outcome text, out run text, out free numeric
) language plpgsql security definer set search_path = '' as $$
declare
  r public.loop_runs := private.check_epoch(payer, at_epoch);
begin
  select x.id into run from public.loop_runs x where x.paid_by = payer and x.start_key = key;
  if found then
    outcome := 'ok';
    return;
  end if;
  free := r.cap_usd - r.spent_usd - r.reserved_usd - keep;
  outcome := case
    when not exists (select 1 from public.tools t where t.is_builtin and t.name = 'start_loop' and t.active) then 'off'
    when r.depth >= max_depth then 'deep'
    when max_starts <= (
      select count(*) from public.wallet_entries w
      where w.run_id = payer and w.role = 'run' and w.attempt = in_attempt and w.iteration = in_iteration) then 'many'
    when cap > free then 'refused'
    else 'ok' end;
  if outcome <> 'ok' then
    return;
  end if;
  run := child;
  insert into public.loop_runs
    (id, loop_id, loop_name, agent_id, owner_id, door, spec, goal, cap_usd, folder, paid_by, start_key, depth)
  values (child, of_loop, named, of_agent, r.owner_id, r.door, with_spec, with_goal, cap, in_folder, payer, key,
    r.depth + 1);
  update public.loop_runs u set reserved_usd = u.reserved_usd + cap where u.id = payer;
  insert into public.wallet_entries
    (id, run_id, owner_id, month, role, model, attempt, iteration, reserved_usd, epoch)
  values ('for ' || child, payer, r.owner_id, date_trunc('month', now() at time zone 'utc')::date, 'run', child,
    in_attempt, in_iteration, cap, at_epoch);
  insert into public.activity_log (user_id, door, action, subject, detail)
  values (r.owner_id, r.door, 'run_started', 'run:' || child, jsonb_build_object('loop', of_loop, 'paid_by', payer));
  perform private.add_events(payer, jsonb_build_array(jsonb_build_object(
    'type', 'money_reserved',
    'reservation', jsonb_build_object(
      'id', 'for ' || child, 'amount', cap::text, 'role', 'run', 'model', child, 'attempt', in_attempt,
      'iteration', in_iteration),
    'wallet', null)), null);
end $$;

-- When a run ends, the run that pays for it gets back what is left, and the runs that it pays for are cancelled.
create function private.settle_family() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
  entry public.wallet_entries;
  payer public.loop_runs;
  child text;
begin
  for child in
    select c.id from public.loop_runs c
    where c.paid_by = new.id and c.status <> 'finished' and c.cancel_requested_at is null
  loop
    update public.loop_runs c set cancel_requested_at = now() where c.id = child;
    perform pg_notify('loopwright_cancel', child);
  end loop;
  if new.paid_by is null then
    return null;
  end if;
  update public.wallet_entries w set amount_usd = new.spent_usd, basis = 'reported', settled_at = now()
  where w.id = 'for ' || new.id and w.settled_at is null returning * into entry;
  if not found then
    return null;
  end if;
  update public.loop_runs p
  set
    reserved_usd = p.reserved_usd - entry.reserved_usd,
    spent_usd = p.spent_usd + new.spent_usd,
    overrun_usd = p.overrun_usd + greatest(0, new.spent_usd - entry.reserved_usd)
  where p.id = new.paid_by returning * into payer;
  if payer.status = 'running' then
    perform private.add_events(payer.id, jsonb_build_array(jsonb_build_object(
      'type', 'money_settled',
      'charge', jsonb_build_object(
        'reservation', jsonb_build_object(
          'id', entry.id, 'amount', entry.reserved_usd::text, 'role', 'run', 'model', new.id,
          'attempt', entry.attempt, 'iteration', entry.iteration),
        'amount', new.spent_usd::text, 'basis', 'reported', 'tokens', '{}'::jsonb, 'why', 'the run is over'),
      'wallet', null, 'response', null)), null);
  end if;
  return null;
end $$;
create trigger loop_runs_family after update of status on public.loop_runs
  for each row when (new.status = 'finished' and old.status <> 'finished') execute function private.settle_family();

-- Only admins switch builtins, and nothing else of them can be changed.
create function private.switch_builtin(tool uuid, to_active boolean) returns void
language plpgsql volatile security definer set search_path = '' as $$
begin
  if not private.is_admin() then
    raise exception 'no admin' using errcode = '42501';
  end if;
  update public.tools t set active = to_active where t.id = tool and t.is_builtin;
end $$;

revoke all on function
  private.builtins_of(uuid), private.grant_builtins(), private.settle_family(), private.switch_builtin(uuid, boolean),
  private.take_builtins(text),
  private.start_child(text, integer, text, boolean, text, text, uuid, text, uuid, jsonb, text, numeric, numeric, text,
    integer, integer, integer, integer)
  from public;
grant execute on function private.switch_builtin(uuid, boolean), private.take_builtins(text) to authenticated;
grant execute on function
  private.start_child(text, integer, text, boolean, text, text, uuid, text, uuid, jsonb, text, numeric, numeric, text,
    integer, integer, integer, integer)
  to service_role;
