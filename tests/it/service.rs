//! The API from outside: real gRPC to a real `procyard serve`.

mod cancelling;
mod deleting;
mod door;
mod ending;
mod following;
mod killing;
mod listing;
mod reading;
mod refusing;
mod resizing;
mod restarting;
mod shutting_down;
mod signalling;
mod starting;
mod typing;
mod waiting;
mod watching;
