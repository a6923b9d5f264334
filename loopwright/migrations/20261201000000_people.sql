-- Who uses Loopwright, and the helpers that policies call.

-- The application logs in as this role. It owns nothing and inherits nothing: without SET ROLE it can do nothing.
do $$ begin
  if not exists (select from pg_roles where rolname = 'loopwright_app') then
    create role loopwright_app login noinherit nobypassrls;
  end if;
end $$;
grant anon, authenticated, service_role to loopwright_app;

create schema private;
revoke all on schema private from public;
grant usage on schema private to authenticated, service_role;

create table public.profiles (
  id uuid primary key references auth.users (id) on delete cascade,
  role text not null default 'member' check (role in ('member', 'admin')),
  display_name text not null default '',
  -- The most that the user's runs may spend in a calendar month (UTC), in USD; null for no cap.
  monthly_cap_usd numeric check (monthly_cap_usd >= 0),
  created_at timestamptz not null default now()
);
comment on table public.profiles is 'A user of the workspace. The role comes from here and never from user metadata.';

create function private.is_admin() returns boolean
language sql stable security definer set search_path = '' as $$
  select exists (select 1 from public.profiles p where p.id = auth.uid() and p.role = 'admin')
$$;

create function private.is_member() returns boolean
language sql stable security definer set search_path = '' as $$
  select exists (select 1 from public.profiles p where p.id = auth.uid())
$$;

create function private.make_profile() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  insert into public.profiles (id, display_name) values (new.id, coalesce(split_part(new.email, '@', 1), ''))
  on conflict (id) do nothing;
  return new;
end $$;
create trigger loopwright_make_profile after insert on auth.users for each row execute function private.make_profile();

create function private.touch() returns trigger
language plpgsql set search_path = '' as $$
begin
  new.updated_at := now();
  new.version := old.version + 1;
  return new;
end $$;

revoke all on function private.is_admin(), private.is_member(), private.make_profile(), private.touch() from public;
grant execute on function private.is_admin(), private.is_member() to authenticated, service_role;

revoke all on public.profiles from public, anon, authenticated, service_role;
grant select on public.profiles to authenticated;
grant select, insert, update, delete on public.profiles to service_role;
alter table public.profiles enable row level security;
create policy profiles_read on public.profiles for select to authenticated
  using (id = (select auth.uid()) or (select private.is_member()));
