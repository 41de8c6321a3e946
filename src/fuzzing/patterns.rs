//! Patterns: each is refused in words, or found in output however that is cut.

use bytes::Bytes;

use super::input::Input;
use crate::grpc::from_proto::{ReadOrder, WaitOrder};
use crate::grpc::pb;
use crate::process::Until;
use crate::supervisor::Error;
use crate::transcript::{Chunk, Matcher, OutputRegex, Stream};

/// How long the pattern is, how the output is cut, the pattern, the output.
pub fn patterns(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (length, seed) = (input.short() as usize, input.byte());
    let (pattern, output) = input.0.split_at(length.min(input.0.len()));
    let pattern = String::from_utf8_lossy(pattern);
    ignoring_case(&pattern);
    let Some(regex) = waited_for(&pattern) else { return };
    let pieces = Input(output).pieces(seed, 64);
    let found_in = |pieces: &[&[u8]]| {
        let mut matcher = Matcher::new(regex.clone());
        let chunks = (1..).zip(pieces).map(|(seq, piece)| Chunk {
            seq,
            stream: Stream::Stdout,
            offset: 0,
            time: 0,
            data: Bytes::copy_from_slice(piece),
        });
        chunks.collect::<Vec<_>>().chunks(3).find_map(|chunks| matcher.feed(chunks))
    };
    let found = found_in(&pieces);
    // In pieces it may be found earlier, where the end so far looked like the end; never later.
    if found_in(&[output]).is_some() && !output.is_empty() && output.len() < 4096 {
        assert!(found.is_some(), "{pattern:?} is lost in pieces of {output:x?}");
    }
}

/// The pattern, if it may be waited for.
fn waited_for(pattern: &str) -> Option<OutputRegex> {
    let until = pb::wait_for::Until::Output(pb::wait_for::Output { regex: pattern.into() });
    let wait = pb::WaitFor { until: Some(until), timeout: None };
    let request = pb::WaitRequest { id: "a".into(), wait: Some(wait), ..Default::default() };
    match WaitOrder::try_from(request) {
        Ok(WaitOrder { wait, .. }) => match wait.until {
            Until::Output(regex) => Some(regex),
            _ => panic!("it waits for something else"),
        },
        Err(Error::Invalid(fields)) => {
            assert!(fields.len() == 1 && fields[0].field == "wait.output.regex");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// The pattern in a view, where upper and lower case are the same.
fn ignoring_case(pattern: &str) {
    let view = pb::View { grep: pattern.into(), ignore_case: true, ..Default::default() };
    let request = pb::ReadRequest { id: "a".into(), view: Some(view), ..Default::default() };
    if let Err(Error::Invalid(fields)) = ReadOrder::try_from(request) {
        assert!(fields.len() == 1 && fields[0].field == "view.grep");
    }
}
