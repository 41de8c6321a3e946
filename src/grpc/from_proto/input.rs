//! Requests of `input.proto`: WriteStdin, Resize, Signal.

use bytes::Bytes;

use super::problems::{Problems, Reported};
use super::spec::side;
use super::transcript::view;
use super::values::{existing_id, signal};
use super::wait::wait_for;
use crate::grpc::pb::{self, write_stdin_request::Input};
use crate::process::{Size, WaitFor};
use crate::supervisor::Error;
use crate::transcript::View;

/// Most bytes of one write, with the Enter key.
const INPUT: usize = 1 << 20;

/// Input for a process.
#[derive(Clone, Debug)]
pub struct WriteOrder {
    /// The process.
    pub id: String,
    /// What to type; may be empty.
    pub input: Bytes,
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

fn input(problems: &mut Problems, input: Option<Input>, most: usize) -> Result<Bytes, Reported> {
    let (field, input) = match input {
        None => return Ok(Bytes::new()),
        Some(Input::Data(data)) => ("data", data),
        Some(Input::Text(text)) => ("text", Bytes::from(text)),
    };
    if input.len() > most {
        let problem = format_args!("has {} bytes: at most {most}", input.len());
        return Err(problems.add(field, problem));
    }
    Ok(input)
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
        assert_eq!(order.input.len(), INPUT);
        let told = refused(WriteOrder::try_from(write(Some(Input::Text(most + "x")))));
        assert_eq!(told, ["text: has 1048577 bytes: at most 1048576"]);
        let data = Bytes::from(vec![0; INPUT + 1]);
        let told = refused(WriteOrder::try_from(write(Some(Input::Data(data)))));
        assert_eq!(told, ["data: has 1048577 bytes: at most 1048576"]);
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
