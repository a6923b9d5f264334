-- Conversations with an agent. A thread is one long run of its agent: each message is an iteration of it, so that its
-- cap is the run's wallet, and what holds for runs (fencing, the journal, recovery) holds for answers.

alter table public.loop_runs
  -- Whether it is a conversation: not in the lists of runs, and its end is a pause.
  add column is_thread boolean not null default false;

create table public.assistant_threads (
  id uuid primary key,
  owner_id uuid not null references auth.users (id) on delete cascade,
  -- Null once the agent is gone: then it can be read and not gone on with.
  agent_id uuid references public.agents (id) on delete set null,
  run_id text not null unique references public.loop_runs (id) on delete cascade,
  title text not null default '' check (length(title) <= 200),
  messages integer not null default 0,
  archived_at timestamptz,
  created_at timestamptz not null default now(),
  -- When it was last written to.
  updated_at timestamptz not null default now()
);
create index assistant_threads_owner on public.assistant_threads (owner_id, updated_at desc, id desc);
create index assistant_threads_agent on public.assistant_threads (agent_id);

create table public.assistant_messages (
  thread_id uuid not null references public.assistant_threads (id) on delete cascade,
  position integer not null,
  text text not null check (length(text) between 1 and 50000),
  status text not null default 'answering' check (status in ('answering', 'answered', 'failed', 'stopped')),
  answer text,
  -- Why there is no answer, in a sentence.
  notice text not null default '',
  -- The iteration of the thread's run that answered it.
  iteration integer,
  -- The run's events between these numbers belong to it.
  after_seq bigint not null,
  end_seq bigint,
  -- What answering cost, without the runs that were started for it.
  cost_usd numeric not null default 0 check (cost_usd >= 0),
  runs text[] not null default '{}',
  created_at timestamptz not null default now(),
  answered_at timestamptz,
  primary key (thread_id, position),
  check ((status = 'answering') = (answered_at is null))
);

revoke all on public.assistant_threads, public.assistant_messages from public, anon, authenticated, service_role;
grant select on public.assistant_threads, public.assistant_messages to authenticated;
grant select, insert, update, delete on public.assistant_threads, public.assistant_messages to service_role;
alter table public.assistant_threads enable row level security;
alter table public.assistant_messages enable row level security;

-- A conversation is its owner's alone, also its run; what it costs is in the usage that admins see.
create policy assistant_threads_read on public.assistant_threads for select to authenticated
  using (owner_id = (select auth.uid()) and (select private.is_member()));
create policy assistant_messages_read on public.assistant_messages for select to authenticated
  using (exists (select 1 from public.assistant_threads t where t.id = thread_id));
alter policy loop_runs_read on public.loop_runs
  using (
    owner_id = (select auth.uid())
    or ((select private.is_admin()) and not is_thread)
    or loop_id in (select private.visible_loops())
  );
create or replace function private.can_see_run(run text) returns boolean
language sql stable security definer set search_path = '' as $$
  select exists (
    select 1 from public.loop_runs r where r.id = run
      and (r.owner_id = auth.uid() or (private.is_admin() and not r.is_thread)
        or r.loop_id in (select private.visible_loops())))
$$;

-- The builtins of a thread's agent: never `loop_done`, since there is no loop to end.
create function private.thread_builtins(agent uuid) returns text[]
language sql stable security definer set search_path = '' as $$
  select array_remove(private.builtins_of(agent), 'loop_done')
$$;

-- Makes a thread of the caller's, with its wallet. What may run is checked by the service; whose it is, here.
create function private.open_thread(thread uuid, run text, agent uuid, named text, called text, cap numeric)
returns void language plpgsql volatile security definer set search_path = '' as $$
begin
  if not private.is_member() then
    raise exception 'no member' using errcode = '42501';
  end if;
  insert into public.loop_runs
    (id, loop_name, agent_id, owner_id, door, spec, goal, cap_usd, is_thread, status, stop_reason, sentence)
  values (run, named, agent, auth.uid(), 'chat', '{}', 'A conversation.', cap, true, 'finished', 'max_iterations',
    'Waiting for you.');
  insert into public.assistant_threads (id, owner_id, agent_id, run_id, title) values
    (thread, auth.uid(), agent, run, called);
end $$;

-- Takes the next message of a thread of the caller's and puts its run into the queue for one more iteration. Returns
-- 'ok', or why not: 'gone' (there is no such thread), 'archived', 'busy' (one is being answered), 'spent' (the cap is).
create function private.post_message(
  thread uuid, message text, with_spec jsonb, called text,
  out outcome text, out place integer, out seq bigint, out submission integer
) language plpgsql volatile security definer set search_path = '' as $$
declare
  t public.assistant_threads;
  r public.loop_runs;
begin
  select * into t from public.assistant_threads x where x.id = thread and x.owner_id = auth.uid() for update;
  if not found or not private.is_member() then
    outcome := 'gone';
    return;
  end if;
  select * into r from public.loop_runs x where x.id = t.run_id for update;
  outcome := case
    when t.archived_at is not null then 'archived'
    when r.status <> 'finished' then 'busy'
    when r.spent_usd >= r.cap_usd then 'spent'
    else 'ok' end;
  if outcome <> 'ok' then
    return;
  end if;
  place := t.messages + 1;
  seq := r.event_seq;
  submission := r.submissions + 1;
  update public.loop_runs x
  set
    status = 'queued', stop_reason = null, sentence = '', error = null, finished_at = null, cancel_requested_at = null,
    spec = with_spec || jsonb_build_object('stop',
      jsonb_build_object('max_iterations', x.iterations + 1, 'budget_usd', x.cap_usd::text)),
    agent_id = t.agent_id, builtins = private.thread_builtins(t.agent_id), resume_after = x.iterations,
    started_at = now() - (x.finished_at - x.started_at), submissions = submission, queued_at = now(), executor = null
  where x.id = r.id;
  insert into public.assistant_messages (thread_id, position, text, after_seq) values (thread, place, message, seq);
  update public.assistant_threads x
  set messages = place, updated_at = now(), title = case when x.title = '' then called else x.title end
  where x.id = thread;
end $$;

-- Changes a thread of the caller's; null leaves a part as it is. Returns 'ok', 'gone', or 'low' for a cap that is less
-- than what is spent and held.
create function private.change_thread(thread uuid, called text, cap numeric, archive boolean) returns text
language plpgsql volatile security definer set search_path = '' as $$
declare
  t public.assistant_threads;
  r public.loop_runs;
begin
  select * into t from public.assistant_threads x where x.id = thread and x.owner_id = auth.uid() for update;
  if not found or not private.is_member() then
    return 'gone';
  end if;
  select * into r from public.loop_runs x where x.id = t.run_id for update;
  if cap < r.spent_usd - r.overrun_usd + r.reserved_usd then
    return 'low';
  end if;
  update public.loop_runs x set cap_usd = coalesce(cap, x.cap_usd) where x.id = r.id;
  update public.assistant_threads x
  set
    title = coalesce(called, x.title),
    archived_at = case when archive is null then x.archived_at when archive then coalesce(x.archived_at, now()) end
  where x.id = thread;
  return 'ok';
end $$;

-- When a thread's run pauses, its message is answered, or it is said why not: in the transaction of the run's end, so
-- that neither is without the other.
create function private.answer_message() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
  said jsonb;
begin
  select i.data -> 'candidate' into said from public.loop_iterations i
  where i.run_id = new.id and i.position = new.iterations and new.iterations > new.resume_after
    and jsonb_typeof(i.data -> 'candidate') = 'object';
  update public.assistant_messages m
  set
    status = case
      when said is not null then 'answered' when new.stop_reason = 'cancelled' then 'stopped' else 'failed' end,
    answer = said ->> 'text',
    notice = case when said is null then new.sentence else '' end,
    iteration = case when new.iterations > new.resume_after then new.iterations end,
    end_seq = new.event_seq,
    cost_usd = coalesce((select sum(u.cost_usd) from public.usage_records u
      where u.run_id = new.id and u.iteration = new.resume_after + 1), 0),
    answered_at = now()
  from public.assistant_threads t
  where t.run_id = new.id and m.thread_id = t.id and m.status = 'answering';
  return null;
end $$;
create trigger loop_runs_answer after update of status on public.loop_runs
  for each row when (new.is_thread and new.status = 'finished' and old.status <> 'finished')
  execute function private.answer_message();

-- A message knows the runs that were started for it, from the statement on that makes them.
create function private.note_child() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  update public.assistant_messages m set runs = m.runs || new.id
  from public.assistant_threads t
  where t.run_id = new.paid_by and m.thread_id = t.id and m.status = 'answering';
  return null;
end $$;
create trigger loop_runs_started after insert on public.loop_runs
  for each row when (new.paid_by is not null) execute function private.note_child();

-- A conversation that pauses stops nothing that it started.
create or replace function private.settle_family() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
  entry public.wallet_entries;
  payer public.loop_runs;
  child text;
begin
  for child in
    select c.id from public.loop_runs c
    where c.paid_by = new.id and not new.is_thread and c.status <> 'finished' and c.cancel_requested_at is null
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

-- Only a message makes a conversation go on.
create or replace function private.extend_run(run text, with_stop jsonb, cap numeric) returns integer
language plpgsql volatile security definer set search_path = '' as $$
declare
  r public.loop_runs := private.lock_run(run);
begin
  if r.status <> 'finished' or r.is_thread then
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

-- What is paid in a conversation counts as such.
create or replace function private.book(
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
      case when r.door in ('schedule', 'webhook', 'chat') then r.door else 'loop' end,
      e.owner_id, e.run_id, r.loop_id, r.agent_id, e.role, e.model, e.attempt, e.iteration,
      on_basis, amount, coalesce(tokens_in, 0), coalesce(tokens_out, 0), coalesce(tokens_cached, 0),
      coalesce(tokens_written, 0));
  end if;
  return over;
end $$;

do $$
declare
  name text;
begin
  foreach name in array array[
    'open_thread(uuid, text, uuid, text, text, numeric)', 'post_message(uuid, text, jsonb, text)',
    'change_thread(uuid, text, numeric, boolean)']
  loop
    execute 'revoke all on function private.' || name || ' from public';
    execute 'grant execute on function private.' || name || ' to authenticated';
  end loop;
  revoke all on function private.thread_builtins(uuid), private.answer_message(), private.note_child() from public;
end $$;
