-- Supabase's Realtime tells its subscribers of runs and events, each only of what its policies let them read.
-- Where there is no such publication, nothing happens.
do $$
declare
  name text;
begin
  if exists (select from pg_publication where pubname = 'supabase_realtime' and not puballtables) then
    foreach name in array array['loop_runs', 'run_events'] loop
      if not exists (
        select from pg_publication_tables p
        where p.pubname = 'supabase_realtime' and p.schemaname = 'public' and p.tablename = name) then
        execute format('alter publication supabase_realtime add table public.%I', name);
      end if;
    end loop;
  end if;
end $$;
