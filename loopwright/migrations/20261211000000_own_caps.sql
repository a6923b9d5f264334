-- A user may lower the own monthly cap below what an admin set; nobody can raise it above that.

alter table public.profiles add column own_cap_usd numeric check (own_cap_usd >= 0);
comment on column public.profiles.own_cap_usd is
  'What the user allows the own runs in a calendar month (UTC), in USD; the lower of this and an admin''s cap holds.';

grant update (own_cap_usd) on public.profiles to authenticated;
create policy profiles_own_cap on public.profiles for update to authenticated
  using (id = (select auth.uid())) with check (id = (select auth.uid()));

-- `least` passes over null: no cap is no cap.
create or replace function private.monthly_cap(of_user uuid) returns numeric
language sql stable security definer set search_path = '' as $$
  select least(
    coalesce(
      (select p.monthly_cap_usd from public.profiles p where p.id = of_user),
      (select w.monthly_cap_usd from public.workspace_settings w)),
    (select p.own_cap_usd from public.profiles p where p.id = of_user))
$$;
