-- A guardrail that refuses something of a run is an event of the run. The activity log has it too, in the same
-- transaction; without the arguments of the call, which stand in the event for those who may see the run.
create function private.log_refusal() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  insert into public.activity_log (user_id, door, action, subject, detail)
  select r.owner_id, r.door, 'guardrail_refused', 'guardrail:' || coalesce(new.data ->> 'rule_id', ''),
    jsonb_build_object(
      'rule', new.data ->> 'rule', 'kind', new.data ->> 'kind', 'reason', new.data ->> 'reason',
      'what', new.data ->> 'what', 'run', new.run_id)
    || case when new.data ->> 'tool' is null then '{}' else jsonb_build_object('tool', new.data ->> 'tool') end
  from public.loop_runs r where r.id = new.run_id;
  return null;
end $$;
revoke all on function private.log_refusal() from public;
create trigger run_events_refusal after insert on public.run_events
  for each row when (new.type = 'guardrail_refused') execute function private.log_refusal();
