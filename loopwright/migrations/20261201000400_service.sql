-- What the service needs beside the tables: acting for a caller in one transaction with the books kept about it.

-- What comes with Loopwright.
insert into public.tools (name, kind, is_builtin, owner_id, visibility, spec)
values ('loop_done', 'builtin', true, null, 'workspace',
  '{"description": "Ends the run after its candidate has been scored. Every agent has it."}')
on conflict do nothing;

-- Where the files of a loop lie that was pushed from this machine: its commands and Python functions are found there.
-- Null for loops made over the API, which have neither. Only the service of a single owner follows it.
alter table public.loops add column folder text;
alter table public.loop_runs add column folder text;

-- Somebody's private things may share a name; a pushed loop file finds its own by it.
create index loops_owner_name on public.loops (owner_id, name);
create index agents_owner_name on public.agents (owner_id, name);
create index tools_owner_name on public.tools (owner_id, name);
create index agents_tool_ids on public.agents using gin (tool_ids);
create index usage_records_loop on public.usage_records (loop_id, at desc);
create index activity_log_recent on public.activity_log (id desc);

-- Through PostgREST, too, people may write these tables; the folder is not theirs to choose there.
revoke insert, update on public.loops from authenticated;
grant insert (id, owner_id, name, agent_id, spec, worst_case_usd, visibility) on public.loops to authenticated;
grant update (name, agent_id, spec, worst_case_usd, visibility) on public.loops to authenticated;

-- The answer to a request is kept in the transaction that the request made its changes in, as its caller.
grant select, insert, update on public.idempotency_keys to authenticated;
create policy idempotency_keys_own on public.idempotency_keys for all to authenticated
  using (owner_id = (select auth.uid())) with check (owner_id = (select auth.uid()));

-- Writes down what the caller does. In the log it is always the caller, whatever anybody passes.
create function private.note(by_door text, what text, on_subject text, more jsonb) returns void
language sql volatile security definer set search_path = '' as $$
  insert into public.activity_log (user_id, door, action, subject, detail)
  values (auth.uid(), by_door, what, on_subject, more)
$$;

-- Whether the caller may steer a run that it can see: its own, or any for an admin. Locks the run.
create function private.lock_run(run text) returns public.loop_runs
language plpgsql volatile security definer set search_path = '' as $$
declare
  r public.loop_runs;
begin
  select * into r from public.loop_runs x where x.id = run for update;
  if r.owner_id is distinct from auth.uid() and not private.is_admin() then
    raise exception 'not yours' using errcode = '42501';
  end if;
  return r;
end $$;

-- Puts a run of the caller's into the queue. What may run is checked by the service; whose it is, here.
create function private.start_run(
  run text, of_loop uuid, named text, of_agent uuid, by_door text, with_spec jsonb, with_goal text, cap numeric,
  in_folder text, parent text, forked_from integer
) returns void
language plpgsql volatile security definer set search_path = '' as $$
begin
  if not private.is_member() then
    raise exception 'no member' using errcode = '42501';
  end if;
  insert into public.loop_runs
    (id, loop_id, loop_name, agent_id, owner_id, door, spec, goal, cap_usd, folder, parent_run_id,
     forked_from_iteration)
  values (run, of_loop, named, of_agent, auth.uid(), by_door, with_spec, with_goal, cap, in_folder, parent, forked_from);
end $$;

-- Asks for a run to be cancelled; doing it twice is doing it once. Returns its status.
create function private.cancel_run(run text) returns text
language plpgsql volatile security definer set search_path = '' as $$
declare
  r public.loop_runs := private.lock_run(run);
begin
  if r.status = 'finished' then
    return r.status;
  end if;
  update public.loop_runs x set cancel_requested_at = coalesce(x.cancel_requested_at, now()) where x.id = run;
  perform pg_notify('loopwright_cancel', run);
  return r.status;
end $$;

-- Puts a finished run back into the queue with another stop condition. Its clock goes on where it stood.
create function private.extend_run(run text, with_stop jsonb, cap numeric) returns integer
language plpgsql volatile security definer set search_path = '' as $$
declare
  r public.loop_runs := private.lock_run(run);
begin
  if r.status <> 'finished' then
    return null;
  end if;
  update public.loop_runs x
  set
    status = 'queued', stop_reason = null, sentence = '', error = null, finished_at = null, cancel_requested_at = null,
    spec = jsonb_set(x.spec, '{stop}', with_stop), cap_usd = cap, resume_after = x.iterations,
    started_at = now() - (x.finished_at - x.started_at), submissions = x.submissions + 1, queued_at = now(),
    executor = null
  where x.id = run;
  return r.submissions + 1;
end $$;

-- Whether the caller can see a run: what the policy of the table says, for functions that go around it.
create function private.can_see_run(run text) returns boolean
language sql stable security definer set search_path = '' as $$
  select exists (
    select 1 from public.loop_runs r where r.id = run
      and (r.owner_id = auth.uid() or private.is_admin() or r.loop_id in (select private.visible_loops())))
$$;

-- Says where the files of a loop of the caller's lie.
create function private.place_loop(loop uuid, in_folder text) returns void
language sql volatile security definer set search_path = '' as $$
  update public.loops l set folder = in_folder where l.id = loop and l.owner_id = auth.uid()
$$;

-- Copies the first iterations of a run that the caller can see into a run that has none. Nothing of them is paid again,
-- so in the copy they cost nothing; its clock begins with it.
create function private.copy_iterations(from_run text, to_run text, many integer, opening jsonb) returns void
language plpgsql volatile security definer set search_path = '' as $$
begin
  if not private.can_see_run(from_run)
    or not exists (
      select 1 from public.loop_runs r
      where r.id = to_run and r.owner_id = auth.uid() and r.event_seq = 0 and r.parent_run_id = from_run) then
    raise exception 'not yours' using errcode = '42501';
  end if;
  insert into public.loop_iterations
    (run_id, attempt, number, position, score, cost_usd, elapsed_seconds, is_best, data, finished_at)
  select to_run, i.attempt, i.number, i.position, i.score, 0, 0, i.is_best,
    i.data || '{"cost_usd": "0", "tokens": {}}', i.finished_at
  from public.loop_iterations i where i.run_id = from_run and i.position <= many;
  perform private.add_events(to_run, jsonb_build_array(opening), null);
  perform private.add_events(
    to_run,
    (select jsonb_agg(
        e.data || jsonb_build_object(
          'iteration', (e.data -> 'iteration') || '{"cost_usd": "0", "tokens": {}}', 'elapsed_seconds', 0)
        order by i.position)
      from public.run_events e
      join public.loop_iterations i
        on i.run_id = from_run and i.attempt = (e.data -> 'iteration' ->> 'attempt')::integer
        and i.number = (e.data -> 'iteration' ->> 'number')::integer
      where e.run_id = from_run and e.type = 'iteration_finished' and i.position <= many),
    null);
end $$;

-- Sets what a copied run stands at.
create function private.set_best(run text, many integer, in_attempt integer, number integer, score double precision)
returns void language sql volatile security definer set search_path = '' as $$
  update public.loop_runs r
  set iterations = many, resume_after = many, best_attempt = in_attempt, best_iteration = number, best_score = score
  where r.id = run and r.owner_id = auth.uid()
$$;

-- Viewers hear of a run's end even where it could not be written as an event.
create function private.tell_the_end() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  perform pg_notify('loopwright_events', new.id || ' ' || new.event_seq);
  return null;
end $$;
create trigger loop_runs_end after update of status on public.loop_runs
  for each row when (new.status = 'finished' and old.status <> 'finished') execute function private.tell_the_end();

do $$
declare
  name text;
begin
  foreach name in array array[
    'note(text, text, text, jsonb)',
    'start_run(text, uuid, text, uuid, text, jsonb, text, numeric, text, text, integer)', 'cancel_run(text)',
    'extend_run(text, jsonb, numeric)', 'copy_iterations(text, text, integer, jsonb)',
    'place_loop(uuid, text)', 'set_best(text, integer, integer, integer, double precision)']
  loop
    execute 'revoke all on function private.' || name || ' from public';
    execute 'grant execute on function private.' || name || ' to authenticated';
  end loop;
  revoke all on function private.lock_run(text), private.tell_the_end(), private.can_see_run(text) from public;
end $$;
