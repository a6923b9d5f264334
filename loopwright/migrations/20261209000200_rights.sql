-- Whose rights end, end everywhere and at once; an agent never has an admin's.

-- Who is not of the workspace, or was banned or deleted, has nothing: not even what is its own, whichever way it comes.
do $$
declare
  name text;
begin
  for name in select distinct p.tablename from pg_policies p
    where p.schemaname = 'public' and 'authenticated' = any(p.roles)
  loop
    execute format(
      'create policy members_only on public.%I as restrictive for all to authenticated '
      'using ((select private.is_member())) with check ((select private.is_member()))', name);
  end loop;
end $$;

-- As before; but an admin's agent has a member's rights, which its transactions say by a claim that can only lower them.
create or replace function private.is_admin() returns boolean
language sql stable security definer set search_path = '' as $$
  select exists (select 1 from public.profiles p where p.id = auth.uid() and p.role = 'admin')
    and private.is_member()
    and coalesce(auth.jwt() ->> 'loopwright_as', '') <> 'member'
$$;

-- Of some viewers and the runs that they watch, the places of those who may not see their run any more.
create function private.lost_sight(users uuid[], runs text[]) returns setof integer
language sql stable security definer set search_path = '' as $$
  select v.place::integer from unnest(users, runs) with ordinality v (of_user, run, place)
  cross join lateral (select private.role_of(v.of_user) as role) u
  where u.role is null or not exists (
    select 1 from public.loop_runs r left join public.loops l on l.id = r.loop_id
    where r.id = v.run
      and (r.owner_id = v.of_user or (u.role = 'admin' and not r.is_thread) or l.visibility = 'workspace'))
$$;
revoke all on function private.lost_sight(uuid[], text[]) from public;
grant execute on function private.lost_sight(uuid[], text[]) to service_role;

-- As before; but a run that was given more after it had ended is on the wallet of the run that started it no longer, and
-- does not end with that.
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
      and exists (select 1 from public.wallet_entries w where w.id = 'for ' || c.id and w.settled_at is null)
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
