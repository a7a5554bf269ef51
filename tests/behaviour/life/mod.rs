//! The life of a proxy: start, reload, limits, time-outs, the end; against the real program, by its signals.

mod limits;
mod reload;
mod start;
mod stop;
mod timeouts;
