//! The view of an answer.

use super::pattern;
use super::problems::{Problems, Reported};
use crate::grpc::pb;
use crate::transcript::{Grep, View};

/// Most lines of one end.
const LINES: u32 = 10_000;
/// Most lines around a match.
const CONTEXT: u32 = 1000;

/// The field `view`.
pub(super) fn view(
    problems: &mut Problems,
    view: Option<pb::View>,
) -> Result<Option<View>, Reported> {
    let Some(view) = view else {
        return Ok(None);
    };
    let pb::View { max_bytes, strip_ansi, head_lines, tail_lines, grep, context, ignore_case } =
        view;
    let max_bytes = self::max_bytes(problems, max_bytes);
    let head = at_most(problems, "view.head_lines", head_lines, LINES);
    let tail = at_most(problems, "view.tail_lines", tail_lines, LINES);
    let grep = self::grep(problems, &grep, context, ignore_case);
    Ok(Some(View { max_bytes: max_bytes?, strip_ansi, head: head?, tail: tail?, grep: grep? }))
}

/// The field `view` of one who follows. There is no answer that could be full, so it has no bound;
/// and who wants the first lines does not follow.
pub(super) fn live_view(
    problems: &mut Problems,
    given: Option<pb::View>,
) -> Result<Option<View>, Reported> {
    let head = given.as_ref().map_or(0, |view| view.head_lines);
    if head > 0 {
        problems.add("view.head_lines", format_args!("is {head}: not for Follow"));
    }
    view(problems, given.map(|given| pb::View { max_bytes: 0, head_lines: 0, ..given }))
}

fn max_bytes(problems: &mut Problems, given: u32) -> Result<usize, Reported> {
    match given as usize {
        0 => Ok(View::default().max_bytes),
        given @ 1..=View::MAX_BYTES => Ok(given),
        _ => {
            let problem = format_args!("is {given}: up to {} (3 MiB)", View::MAX_BYTES);
            Err(problems.add("view.max_bytes", problem))
        }
    }
}

fn at_most(problems: &mut Problems, field: &str, given: u32, most: u32) -> Result<usize, Reported> {
    if given > most {
        return Err(problems.add(field, format_args!("is {given}: up to {most}")));
    }
    Ok(given as usize)
}

fn grep(
    problems: &mut Problems,
    pattern: &str,
    context: u32,
    ignore_case: bool,
) -> Result<Option<Grep>, Reported> {
    let lines = at_most(problems, "view.context", context, CONTEXT);
    if pattern.is_empty() {
        // Case can be ignored where there is none; lines around nothing are a mistake.
        return match lines? {
            0 => Ok(None),
            _ => Err(problems.add("view.context", format_args!("is {context}: only with grep"))),
        };
    }
    let regex = pattern::compile_for(problems, "view.grep", pattern, ignore_case);
    Ok(Some(Grep { regex: regex?, context: lines? }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::refused;

    fn read(wire: pb::View) -> Result<Option<View>, crate::supervisor::Error> {
        Problems::collect(|problems| view(problems, Some(wire)))
    }

    #[test]
    fn a_view_is_taken_as_it_is_meant() {
        let plain = read(pb::View { ignore_case: true, ..Default::default() }).unwrap().unwrap();
        assert!(plain.is_plain() && plain.max_bytes == 1 << 20);
        let wire = pb::View {
            max_bytes: 7,
            strip_ansi: true,
            head_lines: 1,
            tail_lines: 10_000,
            grep: "error".into(),
            context: 1000,
            ignore_case: true,
        };
        let View { max_bytes, strip_ansi, head, tail, grep } = read(wire).unwrap().unwrap();
        assert_eq!((max_bytes, strip_ansi, head, tail), (7, true, 1, 10_000));
        let grep = grep.unwrap();
        assert!(grep.context == 1000 && grep.regex.is_match(b"ERROR"));
        let wire = pb::View { grep: "error".into(), ..Default::default() };
        assert!(!read(wire).unwrap().unwrap().grep.unwrap().regex.is_match(b"ERROR"));
    }

    #[test]
    fn a_bad_view_tells_all_that_is_bad() {
        let wire = pb::View {
            max_bytes: (3 << 20) + 1,
            head_lines: 10_001,
            tail_lines: u32::MAX,
            grep: "a(b".into(),
            context: 1001,
            ..Default::default()
        };
        assert_eq!(
            refused(read(wire.clone())),
            [
                "view.max_bytes: is 3145729: up to 3145728 (3 MiB)",
                "view.head_lines: is 10001: up to 10000",
                "view.tail_lines: is 4294967295: up to 10000",
                "view.context: is 1001: up to 1000",
                "view.grep: at character 2: unclosed group",
            ]
        );
        let live = Problems::collect(|problems| live_view(problems, Some(wire)));
        assert_eq!(refused(live)[..1], ["view.head_lines: is 10001: not for Follow"]);
        let lonely = pb::View { context: 1, ..Default::default() };
        assert_eq!(refused(read(lonely)), ["view.context: is 1: only with grep"]);
    }
}
