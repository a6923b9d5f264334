-- How many messages a webhook takes: so many at once, and so many a minute after that.

alter table public.webhooks add column per_minute integer not null default 60 check (per_minute between 1 and 6000);
grant select (per_minute), insert (per_minute), update (per_minute) on public.webhooks to authenticated;

create table public.webhook_rates (
  webhook_id uuid primary key references public.webhooks (id) on delete cascade,
  -- When all of its room is free again, if nothing more comes.
  free_at timestamptz not null
);
comment on table public.webhook_rates is 'How much room for messages webhooks have; one row for all processes.';
revoke all on public.webhook_rates from public, anon, authenticated, service_role;
grant select, insert, update, delete on public.webhook_rates to service_role;
alter table public.webhook_rates enable row level security;

-- Takes room for one message. Returns 0, or in how many seconds there is room again. One statement: two processes at
-- once can't both take the last.
create function private.take_room(webhook uuid, many integer) returns double precision
language plpgsql volatile security definer set search_path = '' as $$
declare
  one interval := make_interval(secs => 60.0 / many);
  at_once interval := interval '60 s';
begin
  insert into public.webhook_rates as r (webhook_id, free_at) values (webhook, clock_timestamp() + one)
  on conflict (webhook_id) do update set free_at = greatest(r.free_at, clock_timestamp()) + one
  where greatest(r.free_at, clock_timestamp()) + one <= clock_timestamp() + at_once + interval '1 ms';
  if found then
    return 0;
  end if;
  return (
    select greatest(extract(epoch from r.free_at + one - at_once - clock_timestamp()), 0.001)
    from public.webhook_rates r where r.webhook_id = webhook);
end $$;
revoke all on function private.take_room(uuid, integer) from public;
grant execute on function private.take_room(uuid, integer) to service_role;
