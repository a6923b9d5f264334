-- A terminal executes the run that was started in it and takes none from the queue.

alter table public.workers add column takes_queue boolean not null default true;
