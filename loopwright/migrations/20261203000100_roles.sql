-- Who is an admin is changed by admins, and there is always one.

-- Sets a user's role. Returns 'ok', 'none' for no such user, or 'last' where nobody would be left to give roles. All
-- admins are locked first: of two who demote each other at once, one succeeds.
create function private.set_role(of_user uuid, to_role text) returns text
language plpgsql volatile security definer set search_path = '' as $$
begin
  perform from public.profiles p where p.role = 'admin' order by p.id for update;
  if not private.is_admin() then
    raise exception 'admins only' using errcode = '42501';
  end if;
  if to_role <> 'admin' and not exists (select from public.profiles p where p.role = 'admin' and p.id <> of_user) then
    return 'last';
  end if;
  update public.profiles p set role = to_role where p.id = of_user;
  return case when found then 'ok' else 'none' end;
end $$;
revoke all on function private.set_role(uuid, text) from public;
grant execute on function private.set_role(uuid, text) to authenticated;
