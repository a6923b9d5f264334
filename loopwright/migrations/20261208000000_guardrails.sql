-- Guardrails: what no run and no tool call of the workspace may do. Admins write them.

create table public.guardrails (
  id uuid primary key default gen_random_uuid(),
  name text not null check (length(name) between 1 and 200),
  -- As in the spec. Not limited to those that are known: a kind that isn't lets nothing pass.
  kind text not null check (length(kind) between 1 and 40),
  spec jsonb not null check (jsonb_typeof(spec) = 'object'),
  active boolean not null default true,
  version integer not null default 1,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now()
);
comment on table public.guardrails is 'Checks before runs and tool calls. Each refusal names the one that refuses.';
create index guardrails_recent on public.guardrails (created_at desc, id desc);
create trigger guardrails_touch before update on public.guardrails for each row execute function private.touch();

revoke all on public.guardrails from public, anon, authenticated, service_role;
grant select, insert (name, kind, spec, active), update (name, kind, spec, active), delete
  on public.guardrails to authenticated;
grant select, insert, update, delete on public.guardrails to service_role;
alter table public.guardrails enable row level security;
create policy guardrails_admins on public.guardrails for all to authenticated
  using ((select private.is_admin())) with check ((select private.is_admin()));

-- What members may know of guardrails: that they are there. What exactly they look for is for admins.
create function private.guardrail_names() returns table (
  id uuid, name text, kind text, active boolean, version integer, created_at timestamptz, updated_at timestamptz
) language sql stable security definer set search_path = '' as $$
  select g.id, g.name, g.kind, g.active, g.version, g.created_at, g.updated_at from public.guardrails g
  where private.is_member()
$$;
revoke all on function private.guardrail_names() from public;
grant execute on function private.guardrail_names() to authenticated;
