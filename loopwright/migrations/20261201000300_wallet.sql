-- The wallet in SQL: each call below is one statement of its caller, and takes its locks in the same order
-- (run, then month), so that attempts in many processes can neither overspend nor lock each other out.
-- Errors carry a code: LW001 a stale epoch, LW002 no such run.

-- Takes the next epoch of a run for an executor and returns it; null for a run that is not to be had: it is finished or
-- gone, somebody who lives executes it, it was given to the engine again since this submission, or it is of a format
-- that the executor's code can't go on with.
create function private.take_run(run text, by_executor text, of_submission integer, of_format integer) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  taken integer;
begin
  update public.loop_runs r
  set
    epoch = r.epoch + 1, executor = by_executor, status = 'running', started_at = coalesce(r.started_at, now()),
    format = coalesce(of_format, r.format)
  where r.id = run
    and r.submissions = coalesce(of_submission, r.submissions)
    and (of_format is null or r.format = of_format or r.event_seq = 0)
    and (
      r.status = 'queued'
      or r.status = 'running' and (
        r.executor = by_executor or not exists (select from public.workers w where w.executor = r.executor)))
  returning r.epoch into taken;
  return taken;
end $$;

create function private.check_epoch(run text, wanted integer) returns public.loop_runs
language plpgsql security definer set search_path = '' as $$
declare
  found_run public.loop_runs;
begin
  select * into found_run from public.loop_runs r where r.id = run for update;
  if not found then
    raise exception 'no such run: %', run using errcode = 'LW002';
  end if;
  if found_run.epoch <> wanted or found_run.status <> 'running' then
    raise exception 'run % is in other hands', run using errcode = 'LW001';
  end if;
  return found_run;
end $$;

-- Whether a call that is being repeated was applied the first time, though its answer was lost.
create function private.applied(run text, by_call text) returns boolean
language sql stable security definer set search_path = '' as $$
  select by_call is not null and exists (
    select from public.run_events e where e.run_id = run and e.call = by_call)
$$;

-- The sequence number of the last event that a call recorded.
create function private.last_event(run text, by_call text) returns bigint
language sql stable security definer set search_path = '' as $$
  select max(e.seq) from public.run_events e where e.run_id = run and e.call = by_call
$$;

-- Records events of a run and returns the sequence number of the last one. Each gets its number, its time, and the
-- wallet as it is now where it shows one.
create function private.add_events(run text, events jsonb, by_call text) returns bigint
language plpgsql security definer set search_path = '' as $$
declare
  r public.loop_runs;
  amount integer := jsonb_array_length(events);
begin
  if amount = 0 then
    return null;
  end if;
  update public.loop_runs u set event_seq = u.event_seq + amount where u.id = run returning * into r;
  insert into public.run_events (run_id, seq, type, call, data)
  select
    run,
    r.event_seq - amount + e.ordinality,
    e.value ->> 'type',
    by_call,
    e.value
      || jsonb_build_object(
        'seq', r.event_seq - amount + e.ordinality,
        'at', to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'run_id', run)
      || case when e.value ? 'wallet' then private.wallet_of(r) else '{}' end
  from jsonb_array_elements(events) with ordinality e;
  perform pg_notify('loopwright_events', run || ' ' || r.event_seq);
  return r.event_seq;
end $$;

-- Events show amounts as text, so that no digit is lost.
create function private.wallet_of(r public.loop_runs) returns jsonb
language sql immutable set search_path = '' as $$
  select jsonb_build_object('wallet', jsonb_build_object(
    'cap', r.cap_usd::text, 'spent', r.spent_usd::text, 'reserved', r.reserved_usd::text))
$$;

-- Records events that change nothing else. Each function that a worker calls takes the number of the call and whether
-- it is repeated; repeating a call that was applied changes nothing.
create function private.record(run text, at_epoch integer, call text, again boolean, events jsonb) returns bigint
language plpgsql security definer set search_path = '' as $$
begin
  perform private.check_epoch(run, at_epoch);
  if again and private.applied(run, call) then
    return private.last_event(run, call);
  end if;
  return private.add_events(run, events, call);
end $$;

-- Ends a run. What is still reserved then, though nothing should be, is charged whole. The best candidate is the one
-- that the last event names; a run that can't record it keeps the best of its iterations.
create function private.finish_run(
  run text, at_epoch integer, call text, again boolean, reason text, in_words text, failure text, events jsonb
) returns bigint language plpgsql security definer set search_path = '' as $$
declare
  last bigint;
  best jsonb := events -> -1 -> 'best';
begin
  select r.event_seq into last from public.loop_runs r
  where again and r.id = run and r.epoch = at_epoch and r.status = 'finished';
  if found then
    return last;
  end if;
  perform private.check_epoch(run, at_epoch);
  perform private.settle_open(run, at_epoch, jsonb_array_length(events) > 0, 'the run ended before it was settled');
  last := private.add_events(run, events, call);
  update public.loop_runs r
  set
    status = 'finished', stop_reason = reason, sentence = in_words, error = failure, finished_at = now(),
    executor = null,
    best_attempt = coalesce((best ->> 'attempt')::integer, r.best_attempt),
    best_iteration = coalesce((best ->> 'number')::integer, r.best_iteration),
    best_score = case
      when best ? 'attempt' then (best -> 'feedback' ->> 'score')::double precision else r.best_score end
  where r.id = run;
  return last;
end $$;

-- What is reserved by requests that settle without waiting for anything. An evaluator's reservation is held while its
-- judge reserves, so whoever waited for it could wait for ever.
create function private.in_flight(run text, of_owner uuid, of_month date) returns numeric
language sql stable security definer set search_path = '' as $$
  select coalesce(sum(w.reserved_usd), 0) from public.wallet_entries w
  where w.settled_at is null and w.role <> 'evaluator'
    and (w.run_id = run or (run is null and w.owner_id = of_owner and w.month = of_month))
$$;

-- Sets money aside. Returns 'ok', 'wait' (it would fit if what is in flight came to nothing), or 'refused'; and what
-- is free now, in USD (null without a cap).
create function private.reserve(
  run text, at_epoch integer, call text, again boolean, entry text, amount numeric, keep numeric,
  for_role text, for_model text, for_attempt integer, for_iteration integer, events jsonb,
  out outcome text, out free numeric
) language plpgsql security definer set search_path = '' as $$
declare
  r public.loop_runs := private.check_epoch(run, at_epoch);
  this_month date := date_trunc('month', now() at time zone 'utc')::date;
  monthly_cap numeric;
  m public.monthly_spend;
  flying numeric;
begin
  free := r.cap_usd - r.spent_usd - r.reserved_usd;
  if again and private.applied(run, call) then
    outcome := 'ok';
    return;
  end if;
  if amount + keep > free then
    flying := private.in_flight(run, null, null);
    outcome := case when flying > 0 and amount + keep <= free + flying then 'wait' else 'refused' end;
    return;
  end if;
  insert into public.monthly_spend (owner_id, month) values (r.owner_id, this_month) on conflict do nothing;
  select p.monthly_cap_usd into monthly_cap from public.profiles p where p.id = r.owner_id;
  select * into m from public.monthly_spend s where s.owner_id = r.owner_id and s.month = this_month for update;
  if m.spent_usd + m.reserved_usd + amount > monthly_cap then
    free := monthly_cap - m.spent_usd - m.reserved_usd;
    flying := private.in_flight(null, r.owner_id, this_month);
    outcome := case when flying > 0 and amount <= free + flying then 'wait' else 'refused' end;
    return;
  end if;
  update public.loop_runs u set reserved_usd = u.reserved_usd + amount where u.id = run;
  update public.monthly_spend s set reserved_usd = s.reserved_usd + amount
  where s.owner_id = r.owner_id and s.month = this_month;
  insert into public.wallet_entries
    (id, run_id, owner_id, month, role, model, attempt, iteration, reserved_usd, epoch)
  values (entry, run, r.owner_id, this_month, for_role, for_model, for_attempt, for_iteration, amount, at_epoch);
  perform private.add_events(run, events, call);
  free := free - amount;
  outcome := 'ok';
end $$;

-- Books one reservation. Settling it twice changes nothing. Returns by how much it cost more than was reserved.
create function private.book(
  entry text, amount numeric, on_basis text,
  tokens_in bigint, tokens_out bigint, tokens_cached bigint, tokens_written bigint
) returns numeric
language plpgsql security definer set search_path = '' as $$
declare
  e public.wallet_entries;
  r public.loop_runs;
  over numeric;
begin
  update public.wallet_entries w set amount_usd = amount, basis = on_basis, settled_at = now()
  where w.id = entry and w.settled_at is null returning * into e;
  if not found then
    return 0;
  end if;
  over := greatest(0, amount - e.reserved_usd);
  update public.loop_runs u
  set
    reserved_usd = u.reserved_usd - e.reserved_usd,
    spent_usd = u.spent_usd + amount,
    overrun_usd = u.overrun_usd + over
  where u.id = e.run_id returning * into r;
  update public.monthly_spend s
  set reserved_usd = s.reserved_usd - e.reserved_usd, spent_usd = s.spent_usd + amount
  where s.owner_id = e.owner_id and s.month = e.month;
  if on_basis <> 'released' then
    insert into public.usage_records
      (context, owner_id, run_id, loop_id, agent_id, role, model, attempt, iteration, basis, cost_usd,
       input_tokens, output_tokens, cached_tokens, cache_write_tokens)
    values (
      case r.door when 'schedule' then 'schedule' when 'webhook' then 'webhook' else 'loop' end,
      e.owner_id, e.run_id, r.loop_id, r.agent_id, e.role, e.model, e.attempt, e.iteration,
      on_basis, amount, coalesce(tokens_in, 0), coalesce(tokens_out, 0), coalesce(tokens_cached, 0),
      coalesce(tokens_written, 0));
  end if;
  return over;
end $$;

-- Books charges, records the operation that they paid for and the events, all in one. What was paid for goes into the
-- events of the charges, too.
create function private.settle(
  run text, at_epoch integer, call text, again boolean, charges jsonb, for_operation text, for_attempt integer,
  for_iteration integer, operation_result json, events jsonb
) returns void language plpgsql security definer set search_path = '' as $$
declare
  charge jsonb;
  bought jsonb := jsonb_build_object('response', operation_result);
begin
  perform private.check_epoch(run, at_epoch);
  if again and private.applied(run, call) then
    return;
  end if;
  for charge in select * from jsonb_array_elements(charges) loop
    perform private.book(
      charge ->> 'id', (charge ->> 'amount')::numeric, charge ->> 'basis',
      (charge -> 'tokens' ->> 'input')::bigint, (charge -> 'tokens' ->> 'output')::bigint,
      (charge -> 'tokens' ->> 'cached')::bigint, (charge -> 'tokens' ->> 'cache_write')::bigint);
  end loop;
  if for_operation is not null then
    insert into public.run_journal (run_id, operation, attempt, iteration, result, epoch)
    values (run, for_operation, for_attempt, for_iteration, operation_result, at_epoch)
    on conflict (run_id, operation) do update set result = excluded.result, epoch = excluded.epoch;
  end if;
  perform private.add_events(
    run,
    (select coalesce(jsonb_agg(
        case when e.value ->> 'type' = 'money_settled' then e.value || bought else e.value end order by e.ordinality),
      '[]')
    from jsonb_array_elements(events) with ordinality e),
    call);
end $$;

-- Settles whole what is reserved still by executions up to an epoch: what it bought can't be known.
create function private.settle_open(run text, up_to_epoch integer, tell boolean, why text) returns integer
language plpgsql security definer set search_path = '' as $$
declare
  entry public.wallet_entries;
  settled integer := 0;
begin
  for entry in
    select * from public.wallet_entries w where w.run_id = run and w.settled_at is null and w.epoch <= up_to_epoch
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

-- Settles whole every reservation that earlier executions left open.
create function private.settle_left_open(run text, at_epoch integer) returns integer
language plpgsql security definer set search_path = '' as $$
begin
  perform private.check_epoch(run, at_epoch);
  return private.settle_open(run, at_epoch - 1, true, 'the worker died before the answer was recorded');
end $$;

-- Records a finished iteration with its event; doing it twice changes nothing.
create function private.finish_iteration(
  run text, at_epoch integer, call text, again boolean, iteration jsonb, elapsed double precision, better boolean,
  is_run_best boolean, events jsonb
) returns bigint language plpgsql security definer set search_path = '' as $$
declare
  place integer;
begin
  perform private.check_epoch(run, at_epoch);
  if again and private.applied(run, call) then
    return private.last_event(run, call);
  end if;
  update public.loop_runs r
  set
    iterations = r.iterations + 1,
    best_attempt = case when is_run_best then (iteration ->> 'attempt')::integer else r.best_attempt end,
    best_iteration = case when is_run_best then (iteration ->> 'number')::integer else r.best_iteration end,
    best_score = case
      when is_run_best then (iteration -> 'feedback' ->> 'score')::double precision else r.best_score end
  where r.id = run returning r.iterations into place;
  insert into public.loop_iterations
    (run_id, attempt, number, position, score, cost_usd, elapsed_seconds, is_best, data)
  values (
    run, (iteration ->> 'attempt')::integer, (iteration ->> 'number')::integer, place,
    (iteration -> 'feedback' ->> 'score')::double precision, (iteration ->> 'cost_usd')::numeric, elapsed, better,
    iteration);
  return private.add_events(run, events, call);
end $$;

-- Only the service may call these, by name: nothing is granted to public.
do $$
declare
  name text;
begin
  foreach name in array array[
    'take_run(text, text, integer, integer)', 'check_epoch(text, integer)', 'applied(text, text)',
    'last_event(text, text)', 'add_events(text, jsonb, text)',
    'wallet_of(public.loop_runs)', 'in_flight(text, uuid, date)',
    'record(text, integer, text, boolean, jsonb)',
    'finish_run(text, integer, text, boolean, text, text, text, jsonb)',
    'reserve(text, integer, text, boolean, text, numeric, numeric, text, text, integer, integer, jsonb)',
    'book(text, numeric, text, bigint, bigint, bigint, bigint)',
    'settle(text, integer, text, boolean, jsonb, text, integer, integer, json, jsonb)',
    'settle_open(text, integer, boolean, text)', 'settle_left_open(text, integer)',
    'finish_iteration(text, integer, text, boolean, jsonb, double precision, boolean, boolean, jsonb)']
  loop
    execute 'revoke all on function private.' || name || ' from public';
    execute 'grant execute on function private.' || name || ' to service_role';
  end loop;
end $$;
