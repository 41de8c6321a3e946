//! The bad fields of one request, all of them, within what an error can carry.

use std::fmt::Display;

use crate::grpc::clip::clip;
use crate::supervisor::{BadField, Error};

/// Bytes of all bad fields of a request together. With the message and in base64 it is well
/// below the 8 KiB of headers that every client takes.
const ROOM: usize = 3 << 10;
/// Bytes of one path, or of one text.
const LONGEST: usize = 300;
/// About what each entry takes besides its texts.
const ENTRY: usize = 8;

/// The bad fields of one request.
#[derive(Default)]
pub(super) struct Problems {
    fields: Vec<BadField>,
    bytes: usize,
    /// Found when there was no room any more.
    more: usize,
}

/// There is no value, and the reason was reported: only [`Problems::add`] makes these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported(());

impl Problems {
    /// Converts a request. `convert` looks at every field before it gives up; its value is
    /// taken only if nothing was reported.
    pub(super) fn collect<T>(
        convert: impl FnOnce(&mut Problems) -> Result<T, Reported>,
    ) -> Result<T, Error> {
        let mut problems = Problems::default();
        let converted = convert(&mut problems);
        match converted {
            Ok(value) if problems.fields.is_empty() => Ok(value),
            _ => Err(Error::Invalid(problems.into_fields())),
        }
    }

    /// Reports a field: its path, and what is wrong and what would be right.
    pub(super) fn add(&mut self, field: impl Display, problem: impl Display) -> Reported {
        if self.more == 0 {
            let field = clip(&field.to_string(), LONGEST);
            let problem = clip(&problem.to_string(), LONGEST);
            let bytes = field.len() + problem.len() + ENTRY;
            if self.bytes + bytes <= ROOM {
                self.bytes += bytes;
                self.fields.push(BadField { field, problem });
                return Reported(());
            }
        }
        self.more += 1;
        Reported(())
    }

    fn into_fields(self) -> Vec<BadField> {
        let Problems { mut fields, bytes: _, more } = self;
        if more > 0 {
            fields.push(BadField { field: "…".into(), problem: format!("and {more} more") });
        }
        fields
    }
}

/// The bad fields of a request that is refused, as "path: problem".
#[cfg(test)]
pub(in crate::grpc) fn refused<T>(converted: Result<T, Error>) -> Vec<String> {
    match converted {
        Ok(_) => panic!("it was taken"),
        Err(Error::Invalid(fields)) => fields
            .into_iter()
            .map(|BadField { field, problem }| format!("{field}: {problem}"))
            .collect(),
        Err(other) => panic!("another refusal: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_are_kept_in_order() {
        let collected = Problems::collect(|problems| {
            problems.add("a", "first");
            Err::<(), _>(problems.add(format_args!("b[{}]", 2), "second"))
        });
        assert_eq!(refused(collected), ["a: first", "b[2]: second"]);
    }

    #[test]
    fn a_value_with_a_problem_is_not_taken() {
        let collected = Problems::collect(|problems| {
            problems.add("a", "bad");
            Ok(1)
        });
        assert_eq!(refused(collected), ["a: bad"]);
        assert_eq!(Problems::collect(|_| Ok(1)), Ok(1));
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let told = refused(Problems::collect(|problems| {
            for n in 0..1000 {
                problems.add(format_args!("f[{n}]"), "x".repeat(10_000));
            }
            Ok(())
        }));
        let (last, whole) = told.split_last().unwrap();
        assert!(whole.len() > 5);
        assert_eq!(*last, format!("…: and {} more", 1000 - whole.len()));
        assert!(told.iter().map(String::len).sum::<usize>() < ROOM + 64);
    }
}
