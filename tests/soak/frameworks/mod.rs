//! The experience of users of Django, SQLAlchemy, Active Record and Prisma. With a token, typical code runs through the
//! proxy as it does on the server. Without one, or with a stale one, only writes to the fenced table fail.

mod active_record;
mod databases;
mod django;
mod prisma;
mod queues;
mod sqlalchemy;

mod world;
