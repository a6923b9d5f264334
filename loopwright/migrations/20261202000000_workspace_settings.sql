-- What an admin sets for the whole workspace: one row.

create table public.workspace_settings (
  id boolean primary key default true check (id),
  -- `host` or `host:port`: what every loop may reach though it isn't public.
  allow_hosts text[] not null default '{}' check (cardinality(allow_hosts) <= 200),
  -- {"<model string>": {"input", "output", "cached_input", "cache_write"}} in USD per million tokens, amounts as text.
  prices jsonb not null default '{}' check (jsonb_typeof(prices) = 'object'),
  -- The monthly cap in USD of members who have none of their own; null for no cap.
  monthly_cap_usd numeric check (monthly_cap_usd >= 0),
  version integer not null default 1,
  updated_at timestamptz not null default now()
);
comment on table public.workspace_settings is 'One row: hosts that may be reached, prices of models, a cap for all.';
insert into public.workspace_settings default values;
create trigger workspace_settings_touch before update on public.workspace_settings
  for each row execute function private.touch();

revoke all on public.workspace_settings from public, anon, authenticated, service_role;
grant select on public.workspace_settings to authenticated, service_role;
grant update (allow_hosts, prices, monthly_cap_usd) on public.workspace_settings to authenticated;
alter table public.workspace_settings enable row level security;
create policy workspace_settings_read on public.workspace_settings for select to authenticated
  using ((select private.is_member()));
create policy workspace_settings_change on public.workspace_settings for update to authenticated
  using ((select private.is_admin())) with check ((select private.is_admin()));

-- What a user's runs may spend in a calendar month: the user's own cap, else the workspace's; null for no cap.
create function private.monthly_cap(of_user uuid) returns numeric
language sql stable security definer set search_path = '' as $$
  select coalesce(
    (select p.monthly_cap_usd from public.profiles p where p.id = of_user),
    (select w.monthly_cap_usd from public.workspace_settings w))
$$;
revoke all on function private.monthly_cap(uuid) from public;

-- As before, but for where the month's cap comes from.
create or replace function private.reserve(
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
  monthly_cap := private.monthly_cap(r.owner_id);
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
