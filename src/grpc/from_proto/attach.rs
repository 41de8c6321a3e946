//! Messages of a client that is attached.

use std::time::Duration;

use super::input::{INPUT, Typed, bytes, keys, size};
use super::problems::{Problems, Reported};
use super::transcript::first;
use super::values::{existing_id, heartbeat, signal};
use crate::grpc::pb::{self, attach_request::Message};
use crate::process::Size;
use crate::supervisor::{BadField, Error};

/// What to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachOrder {
    /// The process.
    pub id: String,
    /// First chunk to be sent; none: the next that comes.
    pub since_seq: Option<u64>,
    /// Gives the terminal this size first.
    pub size: Option<Size>,
    /// Time without news until a heartbeat.
    pub heartbeat: Duration,
}

/// One message of a client that is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachMessage {
    /// The first one.
    Start(AttachOrder),
    /// Input.
    Type(Typed),
    /// The terminal's new size.
    Resize(Size),
    /// A signal to the process.
    Signal(i32),
    /// The end of the input.
    Eof,
}

impl TryFrom<pb::AttachRequest> for AttachMessage {
    type Error = Error;

    fn try_from(request: pb::AttachRequest) -> Result<AttachMessage, Error> {
        let pb::AttachRequest { message } = request;
        Problems::collect(|problems| {
            Ok(match message {
                None => {
                    let right =
                        "required: start first, then data, text, keys, resize, signal or eof";
                    return Err(problems.add("message", right));
                }
                Some(Message::Start(order)) => AttachMessage::Start(start(problems, order)?),
                Some(Message::Data(data)) => {
                    AttachMessage::Type(bytes(problems, "data", data, INPUT)?)
                }
                Some(Message::Text(text)) => {
                    AttachMessage::Type(bytes(problems, "text", text.into(), INPUT)?)
                }
                Some(Message::Keys(pressed)) => AttachMessage::Type(keys(problems, pressed)?),
                Some(Message::Resize(given)) => {
                    AttachMessage::Resize(size(problems, "resize", given)?)
                }
                Some(Message::Signal(text)) => {
                    AttachMessage::Signal(signal(problems, "signal", &text)?)
                }
                Some(Message::Eof(pb::EndOfInput {})) => AttachMessage::Eof,
            })
        })
    }
}

fn start(problems: &mut Problems, start: pb::AttachStart) -> Result<AttachOrder, Reported> {
    let pb::AttachStart { id, since_seq, size: given, heartbeat_interval } = start;
    let id = existing_id(problems, id);
    let size = given.map(|given| size(problems, "start.size", given)).transpose();
    let heartbeat = heartbeat(problems, heartbeat_interval);
    Ok(AttachOrder { id: id?, since_seq: since_seq.map(first), size: size?, heartbeat: heartbeat? })
}

impl AttachMessage {
    /// What the first message has to be.
    pub fn into_start(self) -> Result<AttachOrder, Error> {
        match self {
            AttachMessage::Start(order) => Ok(order),
            _ => Err(misplaced("required: the first message says what to attach to")),
        }
    }

    /// Why a second start is refused.
    pub fn second_start() -> Error {
        misplaced("was sent before: only the first message is one")
    }
}

fn misplaced(why: &str) -> Error {
    Error::Invalid(vec![BadField { field: "start".into(), problem: why.into() }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::refused;

    fn read(message: Message) -> Result<AttachMessage, Error> {
        pb::AttachRequest { message: Some(message) }.try_into()
    }

    #[test]
    fn a_start_is_filled_in() {
        let start = pb::AttachStart { id: "a".into(), since_seq: Some(0), ..Default::default() };
        let order = read(Message::Start(start)).unwrap().into_start().unwrap();
        let heartbeat = Duration::from_secs(15);
        let plain = AttachOrder { id: "a".into(), since_seq: Some(1), size: None, heartbeat };
        assert_eq!(order, plain);
    }

    #[test]
    fn a_bad_message_tells_all_that_is_bad() {
        let too_small = pb::TerminalSize { rows: 0, cols: 1001 };
        let start = pb::AttachStart { size: Some(too_small), ..Default::default() };
        assert_eq!(
            refused(read(Message::Start(start))),
            [
                "id: required: the id of a process",
                "start.size.rows: is 0: 1 to 1000",
                "start.size.cols: is 1001: 1 to 1000"
            ]
        );
        let told = refused(read(Message::Resize(too_small)));
        assert_eq!(told, ["resize.rows: is 0: 1 to 1000", "resize.cols: is 1001: 1 to 1000"]);
        let told = refused(read(Message::Data(vec![0; INPUT + 1].into())));
        assert_eq!(told, ["data: has 1048577 bytes: at most 1048576"]);
        let told = refused(AttachMessage::try_from(pb::AttachRequest { message: None }));
        assert!(told[0].starts_with("message: required: start first"), "{told:?}");
    }

    #[test]
    fn only_the_first_message_is_a_start() {
        let told = refused(read(Message::Signal("TERM".into())).unwrap().into_start());
        assert_eq!(told, ["start: required: the first message says what to attach to"]);
        let told = refused(Err::<(), _>(AttachMessage::second_start()));
        assert_eq!(told, ["start: was sent before: only the first message is one"]);
    }
}
