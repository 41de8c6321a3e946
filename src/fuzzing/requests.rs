//! Requests: whatever a client sends is taken, or refused in words that name the fields.
//!
//! A spec that was taken comes back as one that is taken again and is equal.

use prost::Message;
use tonic::{Code, Status};

use super::Entry;
use crate::grpc::from_proto::{
    AttachMessage, DeleteOrder, FollowOrder, GetOrder, KillOrder, ListOrder, ReadOrder,
    ResizeOrder, RunOrder, ScreenOrder, SignalOrder, SleepOrder, StartOrder, Typed, WaitOrder,
    WatchOrder, WriteOrder, page_token,
};
use crate::grpc::{pb, to_proto};
use crate::supervisor::Error;

/// Bytes of headers that every client takes, less what others are in them.
const HEADERS: usize = 8000;

/// The conversion of each RPC's request.
pub(super) const REQUESTS: &[(&str, Entry)] = &[
    ("Start", start),
    ("Get", looked_at::<pb::GetRequest, GetOrder>),
    ("List", list),
    ("Read", looked_at::<pb::ReadRequest, ReadOrder>),
    ("Follow", looked_at::<pb::FollowRequest, FollowOrder>),
    ("Wait", looked_at::<pb::WaitRequest, WaitOrder>),
    ("WriteStdin", write_stdin),
    ("Resize", looked_at::<pb::ResizeRequest, ResizeOrder>),
    ("Signal", looked_at::<pb::SignalRequest, SignalOrder>),
    ("Kill", looked_at::<pb::KillRequest, KillOrder>),
    ("Run", looked_at::<pb::RunRequest, RunOrder>),
    ("Delete", looked_at::<pb::DeleteRequest, DeleteOrder>),
    ("Watch", looked_at::<pb::WatchRequest, WatchOrder>),
    ("Attach", attach),
    ("Screen", looked_at::<pb::ScreenRequest, ScreenOrder>),
    ("Sleep", looked_at::<pb::SleepRequest, SleepOrder>),
    ("GetServerInfo", |bytes| drop(pb::GetServerInfoRequest::decode(bytes))),
];

/// The first byte says which RPC, the rest is its request.
pub fn requests(bytes: &[u8]) {
    if let Some((which, request)) = bytes.split_first() {
        let (_, look_at) = REQUESTS[usize::from(*which) % REQUESTS.len()];
        look_at(request);
    }
}

fn looked_at<M, O>(bytes: &[u8])
where
    M: Message + Default,
    O: TryFrom<M, Error = Error>,
{
    order::<M, O>(bytes);
}

/// What a request asks for, if it is one and was taken.
fn order<M, O>(bytes: &[u8]) -> Option<O>
where
    M: Message + Default,
    O: TryFrom<M, Error = Error>,
{
    let message = M::decode(bytes).ok()?;
    message.try_into().map_err(is_in_words).ok()
}

/// A refusal names a field at least, and fits into the headers that it travels in.
fn is_in_words(error: Error) {
    let Error::Invalid(fields) = &error else { panic!("{error} without a look at anything") };
    assert!(!fields.is_empty());
    assert!(fields.iter().all(|bad| !bad.field.is_empty() && !bad.problem.is_empty()));
    let status = Status::from(error);
    assert_eq!(status.code(), Code::InvalidArgument);
    let escaped = |byte: u8| if (b' '..=b'~').contains(&byte) && byte != b'%' { 1 } else { 3 };
    let message: usize = status.message().bytes().map(escaped).sum();
    let details = status.details().len().div_ceil(3) * 4;
    assert!(message + details < HEADERS, "{message} and {details} bytes");
}

fn start(bytes: &[u8]) {
    if let Some(StartOrder { spec, .. }) = order::<pb::StartRequest, StartOrder>(bytes) {
        let told = Some(to_proto::spec(&spec, to_proto::Secrets::Shown));
        let again = pb::StartRequest { spec: told, ..Default::default() };
        let again = StartOrder::try_from(again).expect("what was taken is taken again");
        assert_eq!(again.spec, spec);
    }
}

fn list(bytes: &[u8]) {
    if let Some(after) = order::<pb::ListRequest, ListOrder>(bytes).and_then(|order| order.after) {
        let page_token = page_token(after);
        let again = pb::ListRequest { page_token, ..Default::default() };
        assert_eq!(ListOrder::try_from(again).expect("its own token").after, Some(after));
    }
}

fn write_stdin(bytes: &[u8]) {
    if let Some(order) = order::<pb::WriteStdinRequest, WriteOrder>(bytes)
        && let Typed::Keys(keys) = order.input
    {
        keys.into_iter().for_each(super::keys::is_typed);
    }
}

fn attach(bytes: &[u8]) {
    if let Some(message) = order::<pb::AttachRequest, AttachMessage>(bytes) {
        let _ = message.into_start().map_err(is_in_words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rpc_has_its_request_here() {
        let set = prost_types::FileDescriptorSet::decode(pb::FILE_DESCRIPTORS).unwrap();
        let services = set.file.iter().flat_map(|file| &file.service);
        let methods = services.flat_map(|service| &service.method).map(|method| method.name());
        let known: Vec<_> = REQUESTS.iter().map(|(name, _)| *name).collect();
        assert_eq!(methods.collect::<Vec<_>>(), known);
    }
}
