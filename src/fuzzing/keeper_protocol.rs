//! What keeper and server say to each other: bytes are messages or none, wherever they are cut,
//! and what a message says is the same when it is said again.

use std::fmt::Debug;

use bytes::BytesMut;
use prost::Message;

use super::input::Input;
use crate::process::{Exit, Launch, Refused};
use crate::protocol::pb::{self, from_keeper, reply, to_keeper};
use crate::protocol::{decode, encode};

/// How the bytes are cut, the bytes. They are read as either end would.
pub fn keeper_protocol(bytes: &[u8]) {
    let mut input = Input(bytes);
    let seed = input.byte();
    received::<pb::ToKeeper>(&input, seed).into_iter().for_each(asked);
    received::<pb::FromKeeper>(&input, seed).into_iter().for_each(told);
}

/// All messages that come, until one is none.
fn received<M: Message + Default + PartialEq + Debug>(input: &Input<'_>, seed: u8) -> Vec<M> {
    let whole = messages(&[input.0]);
    let pieces = messages(&input.pieces(seed, 16));
    assert_eq!(whole, pieces);
    // Sent again, they are the same.
    let mut wire = BytesMut::new();
    whole.iter().for_each(|message| encode(message, &mut wire));
    assert_eq!(messages::<M>(&[&wire]), whole);
    whole
}

fn messages<M: Message + Default>(pieces: &[&[u8]]) -> Vec<M> {
    let (mut inbox, mut messages) = (BytesMut::new(), Vec::new());
    for piece in pieces {
        inbox.extend_from_slice(piece);
        loop {
            match decode(&mut inbox) {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(_) => return messages,
            }
        }
    }
    messages
}

fn asked(message: pb::ToKeeper) {
    if let Some(to_keeper::Body::Spawn(spawn)) = message.body
        && let Ok(launch) = Launch::try_from(spawn)
    {
        assert_eq!(Launch::try_from(pb::Spawn::from(launch.clone())), Ok(launch));
    }
}

fn told(message: pb::FromKeeper) {
    match message.body {
        Some(from_keeper::Body::Reports(reports)) => {
            for exit in reports.reports.into_iter().filter_map(|report| report.exit) {
                if let Ok(exit) = Exit::try_from(exit) {
                    assert_eq!(Exit::try_from(pb::Exit::from(exit.clone())), Ok(exit));
                }
            }
        }
        Some(from_keeper::Body::Reply(pb::Reply {
            result: Some(reply::Result::Refusal(refusal)),
            ..
        })) => {
            let refused = Refused::from(refusal);
            let again = Refused::from(pb::Refusal::from(refused.clone()));
            assert_eq!(again.to_string(), refused.to_string());
        }
        _ => {}
    }
}
