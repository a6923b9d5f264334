-- What GET /api/metrics counts is read from indexes alone.
create index loop_runs_outcome on public.loop_runs (status, stop_reason) include (iterations, overrun_usd);
create index run_events_counted on public.run_events (type)
  where type in ('evaluation_retried', 'bound_overrun');
