-- Runs: their wallet, their journal, their iterations and their events.

create table public.loop_runs (
  id text primary key,
  -- Null once the loop is gone; the run keeps its own copy of what it was.
  loop_id uuid references public.loops (id) on delete set null,
  loop_name text not null,
  agent_id uuid references public.agents (id) on delete set null,
  owner_id uuid not null references auth.users (id) on delete cascade,
  door text not null check (door in ('ui', 'api', 'cli', 'mcp', 'schedule', 'webhook', 'chat')),
  -- The loop file as it was when the run started, with its agent and tools; secrets stay references.
  spec jsonb not null,
  goal text not null,
  status text not null default 'queued' check (status in ('queued', 'running', 'finished')),
  stop_reason text check (stop_reason in (
    'cancelled', 'error', 'target_reached', 'converged', 'budget', 'max_iterations', 'time', 'no_improvement')),
  sentence text not null default '',
  error text,
  -- The wallet, in USD.
  cap_usd numeric check (cap_usd >= 0),
  spent_usd numeric not null default 0 check (spent_usd >= 0),
  reserved_usd numeric not null default 0 check (reserved_usd >= 0),
  overrun_usd numeric not null default 0 check (overrun_usd >= 0),
  -- Fencing: each execution takes the next number, and writes that carry an older one are refused.
  epoch integer not null default 0,
  executor text,
  -- The workflow-format number of the code that ran it first: only code of the same number goes on with it.
  format integer not null default 1,
  cancel_requested_at timestamptz,
  -- How often the run was given to the engine: at its start, when a worker died or left, when it was given more.
  -- Part of its workflow's id.
  submissions integer not null default 0,
  queued_at timestamptz not null default now(),
  -- Iterations up to this position came before the run was last given more: what ended it then ends it no longer.
  resume_after integer not null default 0,
  parent_run_id text references public.loop_runs (id) on delete set null,
  forked_from_iteration integer,
  event_seq bigint not null default 0,
  iterations integer not null default 0,
  best_attempt integer,
  best_iteration integer,
  best_score double precision,
  started_at timestamptz,
  finished_at timestamptz,
  created_at timestamptz not null default now(),
  check ((status = 'finished') = (stop_reason is not null)),
  check (cap_usd is null or spent_usd - overrun_usd + reserved_usd <= cap_usd)
);
create index loop_runs_owner on public.loop_runs (owner_id, created_at desc, id desc);
create index loop_runs_loop on public.loop_runs (loop_id, created_at desc, id desc);
create index loop_runs_recent on public.loop_runs (created_at desc, id desc);
create index loop_runs_live on public.loop_runs (status, executor) where status <> 'finished';
create index loop_runs_parent on public.loop_runs (parent_run_id) where parent_run_id is not null;

create table public.loop_iterations (
  run_id text not null references public.loop_runs (id) on delete cascade,
  attempt integer not null,
  number integer not null,
  -- Order in which the iterations of all attempts finished.
  position integer not null,
  score double precision,
  cost_usd numeric not null,
  elapsed_seconds double precision not null,
  is_best boolean not null,
  data jsonb not null,
  finished_at timestamptz not null default now(),
  primary key (run_id, attempt, number),
  unique (run_id, position)
);

create table public.run_events (
  run_id text not null references public.loop_runs (id) on delete cascade,
  seq bigint not null,
  type text not null,
  data jsonb not null,
  at timestamptz not null default clock_timestamp(),
  -- Which call of the run's worker recorded it: a call that is repeated after a broken connection is known by this.
  call text,
  primary key (run_id, seq)
);
create index run_events_call on public.run_events (run_id, call);

create table public.run_journal (
  run_id text not null references public.loop_runs (id) on delete cascade,
  operation text not null,
  attempt integer not null,
  iteration integer not null,
  -- Not jsonb: a result is given back exactly as it was, the order of its keys and the form of its numbers included.
  result json not null,
  epoch integer not null,
  at timestamptz not null default now(),
  primary key (run_id, operation)
);
comment on table public.run_journal is 'One row for each finished outside operation, written with its money.';

create table public.wallet_entries (
  id text primary key,
  run_id text not null references public.loop_runs (id) on delete cascade,
  owner_id uuid not null references auth.users (id) on delete cascade,
  -- First day of the month (UTC) on whose cap the reservation counts.
  month date not null,
  role text not null,
  model text not null,
  attempt integer not null,
  iteration integer not null,
  reserved_usd numeric not null check (reserved_usd >= 0),
  amount_usd numeric check (amount_usd >= 0),
  basis text check (basis in ('usage', 'reserved', 'reported', 'released')),
  epoch integer not null,
  created_at timestamptz not null default now(),
  settled_at timestamptz,
  check ((settled_at is null) = (amount_usd is null) and (settled_at is null) = (basis is null))
);
create index wallet_entries_open on public.wallet_entries (run_id) where settled_at is null;
create index wallet_entries_open_month on public.wallet_entries (owner_id, month) where settled_at is null;
create index wallet_entries_run on public.wallet_entries (run_id, role);

create table public.monthly_spend (
  owner_id uuid not null references auth.users (id) on delete cascade,
  month date not null,
  spent_usd numeric not null default 0 check (spent_usd >= 0),
  reserved_usd numeric not null default 0 check (reserved_usd >= 0),
  primary key (owner_id, month)
);

create table public.usage_records (
  id bigint generated always as identity primary key,
  at timestamptz not null default now(),
  context text not null check (context in ('loop', 'chat', 'schedule', 'webhook', 'open_loop')),
  owner_id uuid not null references auth.users (id) on delete cascade,
  run_id text references public.loop_runs (id) on delete set null,
  loop_id uuid references public.loops (id) on delete set null,
  agent_id uuid references public.agents (id) on delete set null,
  role text not null,
  model text not null,
  attempt integer,
  iteration integer,
  basis text not null,
  cost_usd numeric not null check (cost_usd >= 0),
  input_tokens bigint not null default 0,
  output_tokens bigint not null default 0,
  cached_tokens bigint not null default 0,
  cache_write_tokens bigint not null default 0
);
create index usage_records_owner on public.usage_records (owner_id, at desc);
create index usage_records_run on public.usage_records (run_id);
create index usage_records_at on public.usage_records (at desc);

create table public.activity_log (
  id bigint generated always as identity primary key,
  at timestamptz not null default now(),
  user_id uuid references auth.users (id) on delete set null,
  door text not null,
  action text not null,
  subject text not null,
  detail jsonb not null default '{}'
);
comment on table public.activity_log is 'Append-only: who did what, when, through which door.';
create index activity_log_user on public.activity_log (user_id, id desc);

create table public.idempotency_keys (
  owner_id uuid not null references auth.users (id) on delete cascade,
  key text not null check (length(key) between 1 and 200),
  request_sha256 bytea not null,
  -- Null while the first request is being answered.
  status integer,
  response jsonb,
  created_at timestamptz not null default now(),
  primary key (owner_id, key)
);

create table public.workers (
  executor text primary key,
  host text not null,
  pid integer not null,
  -- The machine since it was booted, and the process on it, where the system tells: others on the machine see its death.
  machine text,
  born text,
  format integer not null default 1,
  started_at timestamptz not null default now(),
  beat_at timestamptz not null default now()
);

create function private.forbid_change() returns trigger
language plpgsql set search_path = '' as $$
begin
  raise exception 'the activity log is append-only' using errcode = '42501';
end $$;
revoke all on function private.forbid_change() from public;
create trigger activity_log_append_only before update or delete on public.activity_log
  for each row when (pg_trigger_depth() = 0) execute function private.forbid_change();

-- Whether the caller may see a run: its own, one of a loop that it may see, or any for an admin.
create function private.visible_loops() returns setof uuid
language sql stable security definer set search_path = '' as $$
  select l.id from public.loops l where l.visibility = 'workspace'
    and exists (select 1 from public.profiles p where p.id = auth.uid())
$$;
revoke all on function private.visible_loops() from public;
grant execute on function private.visible_loops() to authenticated;

revoke all on
  public.loop_runs, public.loop_iterations, public.run_events, public.run_journal, public.wallet_entries,
  public.monthly_spend, public.usage_records, public.activity_log, public.idempotency_keys, public.workers
  from public, anon, authenticated, service_role;
grant select on
  public.loop_runs, public.loop_iterations, public.run_events, public.monthly_spend, public.usage_records,
  public.activity_log
  to authenticated;
grant select, insert, update, delete on
  public.loop_runs, public.loop_iterations, public.run_events, public.run_journal, public.wallet_entries,
  public.monthly_spend, public.usage_records, public.idempotency_keys, public.workers
  to service_role;
grant select, insert on public.activity_log to service_role;

alter table public.loop_runs enable row level security;
alter table public.loop_iterations enable row level security;
alter table public.run_events enable row level security;
alter table public.run_journal enable row level security;
alter table public.wallet_entries enable row level security;
alter table public.monthly_spend enable row level security;
alter table public.usage_records enable row level security;
alter table public.activity_log enable row level security;
alter table public.idempotency_keys enable row level security;
alter table public.workers enable row level security;

create policy loop_runs_read on public.loop_runs for select to authenticated
  using (
    owner_id = (select auth.uid())
    or (select private.is_admin())
    or loop_id in (select private.visible_loops())
  );
create policy loop_iterations_read on public.loop_iterations for select to authenticated
  using (exists (select 1 from public.loop_runs r where r.id = run_id));
create policy run_events_read on public.run_events for select to authenticated
  using (exists (select 1 from public.loop_runs r where r.id = run_id));
create policy monthly_spend_read on public.monthly_spend for select to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()));
create policy usage_records_read on public.usage_records for select to authenticated
  using (owner_id = (select auth.uid()) or (select private.is_admin()));
create policy activity_log_read on public.activity_log for select to authenticated
  using (user_id = (select auth.uid()) or (select private.is_admin()));
