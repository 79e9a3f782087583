//! The runtime from outside, as a program would use it.

mod certificates;
mod http;
mod http_server;
mod http_time;
mod tls;
