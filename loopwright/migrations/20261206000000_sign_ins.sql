-- People who sign in with the browser, through Supabase Auth.

-- What a browser's cookie stands for. The cookie holds a random secret and this table its hash: who reads the table
-- can't sign in, and a row that goes ends the sign-in at once.
create table public.sign_ins (
  -- SHA-256 of what the cookie holds.
  id bytea primary key check (octet_length(id) = 32),
  user_id uuid not null references auth.users (id) on delete cascade,
  -- The tokens of Supabase Auth, sealed as `secrets` are.
  nonce bytea not null check (octet_length(nonce) = 12),
  sealed bytea not null,
  key_id text not null,
  -- When the access token ends; it is refreshed a little before.
  fresh_until timestamptz not null,
  -- When the sign-in ends, however often it was refreshed.
  ends_at timestamptz not null,
  created_at timestamptz not null default now()
);
comment on table public.sign_ins is 'Browsers that are signed in; read and written by the service alone.';
create index sign_ins_user on public.sign_ins (user_id);
create index sign_ins_ends on public.sign_ins (ends_at);

revoke all on public.sign_ins from public, anon, authenticated, service_role;
grant select, insert, update, delete on public.sign_ins to service_role;
alter table public.sign_ins enable row level security;

-- Who was banned or deleted in Supabase Auth is no member any more, though a token may last for a while.
create or replace function private.is_member() returns boolean
language sql stable security definer set search_path = '' as $$
  select exists (
    select 1 from public.profiles p join auth.users u on u.id = p.id
    where p.id = auth.uid() and u.deleted_at is null and (u.banned_until is null or u.banned_until <= now()))
$$;

create or replace function private.is_admin() returns boolean
language sql stable security definer set search_path = '' as $$
  select exists (select 1 from public.profiles p where p.id = auth.uid() and p.role = 'admin')
    and private.is_member()
$$;

create or replace function private.visible_loops() returns setof uuid
language sql stable security definer set search_path = '' as $$
  select l.id from public.loops l where l.visibility = 'workspace' and (select private.is_member())
$$;

alter policy profiles_read on public.profiles using ((select private.is_member()));

-- An anonymous sign-in is nobody of the workspace.
create or replace function private.make_profile() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
  if not coalesce(new.is_anonymous, false) then
    insert into public.profiles (id, display_name) values (new.id, coalesce(split_part(new.email, '@', 1), ''))
    on conflict (id) do nothing;
  end if;
  return new;
end $$;
