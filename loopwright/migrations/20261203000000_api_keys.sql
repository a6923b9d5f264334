-- Keys that people make for their own scripts. Of a key only its hash is stored; deleting the row revokes the key.

create table public.api_keys (
  id uuid primary key default gen_random_uuid(),
  owner_id uuid not null default auth.uid() references public.profiles (id) on delete cascade,
  name text not null check (length(name) between 1 and 80),
  -- The beginning of the key, so that people can tell their keys apart.
  prefix text not null check (length(prefix) <= 12),
  -- A key holds 32 random bytes, so a plain hash of it can't be searched.
  sha256 bytea not null unique check (length(sha256) = 32),
  created_at timestamptz not null default now(),
  last_used_at timestamptz,
  unique (owner_id, name)
);
comment on table public.api_keys is 'Personal API keys, as hashes. Whoever shows one acts as its owner.';

revoke all on public.api_keys from public, anon, authenticated, service_role;
grant select (id, owner_id, name, prefix, created_at, last_used_at), insert (owner_id, name, prefix, sha256), delete
  on public.api_keys to authenticated;
grant select, insert, update, delete on public.api_keys to service_role;
alter table public.api_keys enable row level security;
create policy api_keys_read on public.api_keys for select to authenticated using (owner_id = (select auth.uid()));
create policy api_keys_make on public.api_keys for insert to authenticated
  with check (owner_id = (select auth.uid()) and (select private.is_member()));
create policy api_keys_revoke on public.api_keys for delete to authenticated using (owner_id = (select auth.uid()));

-- The owner of a key; null for a key that is none, or was revoked. That it was used is written down once a minute.
create function private.owner_of_key(hash bytea) returns uuid
language plpgsql volatile security definer set search_path = '' as $$
declare
  k public.api_keys;
begin
  select * into k from public.api_keys a where a.sha256 = hash;
  if k.last_used_at is null or k.last_used_at < now() - interval '1 minute' then
    update public.api_keys a set last_used_at = now() where a.id = k.id;
  end if;
  return k.owner_id;
end $$;
revoke all on function private.owner_of_key(bytea) from public;
grant execute on function private.owner_of_key(bytea) to service_role;
