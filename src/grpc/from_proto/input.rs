//! Requests of `input.proto`: WriteStdin, Resize, Signal, Screen. Attach has a file of its own.

use bytes::Bytes;

use super::problems::{Problems, Reported};
use super::spec::side;
use super::values::{existing_id, signal};
use super::view::view;
use super::wait::wait_for;
use crate::grpc::clip::quoted;
use crate::grpc::pb::{self, write_stdin_request::Input};
use crate::process::{Key, Size, WaitFor};
use crate::supervisor::Error;
use crate::transcript::View;

/// Most bytes of one write, with the Enter key.
pub(super) const INPUT: usize = 1 << 20;

/// Most keys of one write.
const KEYS: usize = 1000;

/// What to type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Typed {
    /// Bytes, or text.
    Bytes(Bytes),
    /// Keys. Which bytes these are depends on the process.
    Keys(Vec<Key>),
}

impl Typed {
    /// Nothing is to be typed.
    pub fn is_empty(&self) -> bool {
        match self {
            Typed::Bytes(bytes) => bytes.is_empty(),
            Typed::Keys(keys) => keys.is_empty(),
        }
    }
}

/// Input for a process.
#[derive(Clone, Debug)]
pub struct WriteOrder {
    /// The process.
    pub id: String,
    /// What to type; may be empty.
    pub input: Typed,
    /// Ends it with the Enter key. Which byte that is depends on the process.
    pub enter: bool,
    /// Ends the input afterwards.
    pub eof: bool,
    /// Where it begins in all input of the process; none: at the end.
    pub offset: Option<u64>,
    /// What to wait for before answering; none: only that it was taken.
    pub wait: Option<WaitFor>,
    /// How the answer shows the output; none: no output unless it is waited for.
    pub view: Option<View>,
}

impl WriteOrder {
    /// Nothing is to be typed or ended: the call only waits and reads.
    pub fn only_looks(&self) -> bool {
        self.input.is_empty() && !self.enter && !self.eof
    }
}

/// A terminal's new size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeOrder {
    /// The process.
    pub id: String,
    /// The size.
    pub size: Size,
}

/// A signal to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalOrder {
    /// The process.
    pub id: String,
    /// Number of the signal.
    pub signal: i32,
    /// To its process group instead of the process alone.
    pub group: bool,
}

impl TryFrom<pb::WriteStdinRequest> for WriteOrder {
    type Error = Error;

    fn try_from(request: pb::WriteStdinRequest) -> Result<WriteOrder, Error> {
        let pb::WriteStdinRequest { id, input, enter, eof, offset, wait, view: shown } = request;
        Problems::collect(|problems| {
            let id = existing_id(problems, id);
            let input = self::input(problems, input, INPUT - usize::from(enter));
            let wait = wait_for(problems, wait);
            let view = view(problems, shown)?;
            Ok(WriteOrder { id: id?, input: input?, enter, eof, offset, wait: wait?, view })
        })
    }
}

fn input(problems: &mut Problems, input: Option<Input>, most: usize) -> Result<Typed, Reported> {
    match input {
        None => Ok(Typed::Bytes(Bytes::new())),
        Some(Input::Data(data)) => bytes(problems, "data", data, most),
        Some(Input::Text(text)) => bytes(problems, "text", text.into(), most),
        Some(Input::Keys(pressed)) => keys(problems, pressed),
    }
}

/// Bytes or text, up to [`INPUT`] unless there is less room.
pub(super) fn bytes(
    problems: &mut Problems,
    field: &str,
    input: Bytes,
    most: usize,
) -> Result<Typed, Reported> {
    if input.len() > most {
        let problem = format_args!("has {} bytes: at most {most}", input.len());
        return Err(problems.add(field, problem));
    }
    Ok(Typed::Bytes(input))
}

/// The field `keys`.
pub(super) fn keys(problems: &mut Problems, keys: pb::Keys) -> Result<Typed, Reported> {
    let pb::Keys { names } = keys;
    if names.len() > KEYS {
        let problem = format_args!("has {} names: at most {KEYS}", names.len());
        return Err(problems.add("keys.names", problem));
    }
    let mut known = Ok(Vec::with_capacity(names.len()));
    for (at, name) in names.iter().enumerate() {
        match (Key::parse(name), &mut known) {
            (Some(key), Ok(known)) => known.push(key),
            (Some(_), Err(_)) => {}
            (None, known) => {
                let problem = format_args!("is {}: {}", quoted(name), Key::CHOICES);
                *known = Err(problems.add(format_args!("keys.names[{at}]"), problem));
            }
        }
    }
    known.map(Typed::Keys)
}

/// Rows and columns of a terminal.
pub(super) fn size(
    problems: &mut Problems,
    field: &str,
    size: pb::TerminalSize,
) -> Result<Size, Reported> {
    let pb::TerminalSize { rows, cols } = size;
    let rows = side(problems, &format!("{field}.rows"), rows);
    let cols = side(problems, &format!("{field}.cols"), cols);
    Ok(Size { rows: rows?, cols: cols? })
}

/// A terminal to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScreenOrder {
    /// The process.
    pub id: String,
}

impl TryFrom<pb::ScreenRequest> for ScreenOrder {
    type Error = Error;

    fn try_from(request: pb::ScreenRequest) -> Result<ScreenOrder, Error> {
        let pb::ScreenRequest { id } = request;
        Problems::collect(|problems| Ok(ScreenOrder { id: existing_id(problems, id)? }))
    }
}

impl TryFrom<pb::ResizeRequest> for ResizeOrder {
    type Error = Error;

    fn try_from(request: pb::ResizeRequest) -> Result<ResizeOrder, Error> {
        let pb::ResizeRequest { id, rows, cols } = request;
        Problems::collect(|problems| {
            let id = existing_id(problems, id);
            let rows = side(problems, "rows", rows);
            let cols = side(problems, "cols", cols);
            Ok(ResizeOrder { id: id?, size: Size { rows: rows?, cols: cols? } })
        })
    }
}

impl TryFrom<pb::SignalRequest> for SignalOrder {
    type Error = Error;

    fn try_from(request: pb::SignalRequest) -> Result<SignalOrder, Error> {
        let pb::SignalRequest { id, signal: text, group } = request;
        Problems::collect(|problems| {
            let id = existing_id(problems, id);
            let signal = signal(problems, "signal", &text);
            Ok(SignalOrder { id: id?, signal: signal?, group })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::refused;

    fn write(input: Option<Input>) -> pb::WriteStdinRequest {
        pb::WriteStdinRequest { id: "a".into(), input, ..Default::default() }
    }

    #[test]
    fn a_write_without_anything_to_type_only_looks() {
        let looks = |request| WriteOrder::try_from(request).unwrap().only_looks();
        assert!(looks(write(None)));
        assert!(looks(write(Some(Input::Text(String::new())))));
        assert!(!looks(pb::WriteStdinRequest { enter: true, ..write(None) }));
        assert!(!looks(pb::WriteStdinRequest { eof: true, ..write(None) }));
        assert!(!looks(write(Some(Input::Data(Bytes::from_static(b"\xff"))))));
    }

    #[test]
    fn more_than_a_mebibyte_is_refused() {
        let most = "x".repeat(INPUT);
        let order = WriteOrder::try_from(write(Some(Input::Text(most.clone())))).unwrap();
        assert!(matches!(order.input, Typed::Bytes(bytes) if bytes.len() == INPUT));
        let told = refused(WriteOrder::try_from(write(Some(Input::Text(most + "x")))));
        assert_eq!(told, ["text: has 1048577 bytes: at most 1048576"]);
        let data = Bytes::from(vec![0; INPUT + 1]);
        let told = refused(WriteOrder::try_from(write(Some(Input::Data(data)))));
        assert_eq!(told, ["data: has 1048577 bytes: at most 1048576"]);
    }

    #[test]
    fn keys_that_are_none_are_told_all_at_once_with_what_would_be_right() {
        let keys = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            WriteOrder::try_from(write(Some(Input::Keys(pb::Keys { names }))))
        };
        let order = keys(&["ctrl+c", "Up", "x"]).unwrap();
        assert!(matches!(order.input, Typed::Keys(keys) if keys.len() == 3));
        assert!(keys(&[]).unwrap().only_looks());
        let told = refused(keys(&["up", "hyper+x", "down", ""]));
        assert_eq!(told.len(), 2);
        assert!(told[0].starts_with("keys.names[1]: is \"hyper+x\": a character, or enter"));
        assert!(told[1].starts_with("keys.names[3]: is \"\": a character"));
        let told = refused(keys(&["x"; KEYS + 1]));
        assert_eq!(told, ["keys.names: has 1001 names: at most 1000"]);
    }

    #[test]
    fn a_size_has_no_default_here() {
        let request = pb::ResizeRequest { id: "a".into(), rows: 0, cols: 70_000 };
        let told = refused(ResizeOrder::try_from(request));
        assert_eq!(told, ["rows: is 0: 1 to 1000", "cols: is 70000: 1 to 1000"]);
        let request = pb::ResizeRequest { id: "a".into(), rows: 1, cols: 1000 };
        let size = Size { rows: 1, cols: 1000 };
        assert_eq!(ResizeOrder::try_from(request), Ok(ResizeOrder { id: "a".into(), size }));
    }

    #[test]
    fn a_signal_is_required() {
        let request = pb::SignalRequest { id: "a".into(), signal: "hup".into(), group: true };
        let order = SignalOrder { id: "a".into(), signal: 1, group: true };
        assert_eq!(SignalOrder::try_from(request), Ok(order));
        let told = refused(SignalOrder::try_from(pb::SignalRequest::default()));
        assert!(told.len() == 2 && told[1].starts_with("signal: is \"\""), "{told:?}");
    }
}
