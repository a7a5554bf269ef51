//! What users of Django, SQLAlchemy, Active Record and Prisma see: with a token their habits run through the proxy as they do
//! on the server; without one, or with a stale one, only what writes to the fenced table fails.

mod active_record;
mod databases;
mod django;
mod prisma;
mod queues;
mod sqlalchemy;

mod world;
