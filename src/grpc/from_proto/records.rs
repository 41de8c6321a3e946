//! Requests of `records.proto`: Get, List, and which processes are meant.

use super::problems::{Problems, Reported};
use super::spec::labels;
use super::values::{existing_id, line, words};
use crate::grpc::clip::quoted;
use crate::grpc::pb;
use crate::process::Selector;
use crate::supervisor::Error;

/// Most processes in one answer.
const MOST: u32 = 1000;
/// Processes in one answer unless another number is asked for.
const DEFAULT: u32 = 50;
/// What a page token begins with: another meaning would get another number.
const TOKEN: &str = "1-";

/// A record to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetOrder {
    /// The process.
    pub id: String,
}

/// Records to list, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListOrder {
    /// Which.
    pub selector: Selector,
    /// Only those that have not finished.
    pub live_only: bool,
    /// Most of them in one answer.
    pub page_size: usize,
    /// `birth` of the last one of the page before, if this is not the first.
    pub after: Option<u64>,
}

impl TryFrom<pb::GetRequest> for GetOrder {
    type Error = Error;

    fn try_from(pb::GetRequest { id }: pb::GetRequest) -> Result<GetOrder, Error> {
        Problems::collect(|problems| Ok(GetOrder { id: existing_id(problems, id)? }))
    }
}

impl TryFrom<pb::ListRequest> for ListOrder {
    type Error = Error;

    fn try_from(request: pb::ListRequest) -> Result<ListOrder, Error> {
        let pb::ListRequest { selector: chosen, live_only, page_size: size, page_token } = request;
        Problems::collect(|problems| {
            let selector = selector(problems, chosen);
            let page_size = page_size(problems, size);
            let after = after(problems, &page_token);
            Ok(ListOrder { selector: selector?, live_only, page_size: page_size?, after: after? })
        })
    }
}

/// The field `selector`. Its texts and labels are such as a spec may have: an open Watch or Sleep keeps
/// them.
pub(super) fn selector(
    problems: &mut Problems,
    selector: Option<pb::Selector>,
) -> Result<Selector, Reported> {
    selector_at(problems, "selector", selector.unwrap_or_default())
}

/// A selector in a field of another name.
pub(super) fn selector_at(
    problems: &mut Problems,
    at: &str,
    selector: pb::Selector,
) -> Result<Selector, Reported> {
    let pb::Selector {
        states,
        outcomes,
        r#ref,
        name,
        service,
        owner,
        workspace,
        labels: pairs,
        mode,
        queue,
    } = selector;
    let states = words(problems, &format!("{at}.states"), states);
    let outcomes = words(problems, &format!("{at}.outcomes"), outcomes);
    let mut text = |name, text| line(problems, format_args!("{at}.{name}"), text);
    let reference = text("ref", r#ref);
    let name = text("name", name);
    let service = text("service", service);
    let owner = text("owner", owner);
    let workspace = text("workspace", workspace);
    let queue = text("queue", queue);
    let labels = labels(problems, &format!("{at}.labels"), pairs);
    let mode = if mode == pb::Mode::Unspecified as i32 { Vec::new() } else { vec![mode] };
    let mode = words(problems, &format!("{at}.mode"), mode).pop();
    Ok(Selector {
        states,
        outcomes,
        reference: reference?,
        name: name?,
        service: service?,
        owner: owner?,
        workspace: workspace?,
        labels,
        queue: queue?,
        mode,
    })
}

fn page_size(problems: &mut Problems, size: u32) -> Result<usize, Reported> {
    match size {
        0 => Ok(DEFAULT as usize),
        1..=MOST => Ok(size as usize),
        _ => Err(problems.add("page_size", format_args!("is {size}: up to {MOST}"))),
    }
}

/// The token for the page after the process with this `birth`.
pub fn page_token(birth: u64) -> String {
    format!("{TOKEN}{birth:x}")
}

fn after(problems: &mut Problems, token: &str) -> Result<Option<u64>, Reported> {
    if token.is_empty() {
        return Ok(None);
    }
    let digits = token.strip_prefix(TOKEN);
    let birth = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    // Only the one spelling that was given out.
    let birth = birth.filter(|birth| page_token(*birth) == token);
    birth.map(Some).ok_or_else(|| {
        let problem = format_args!("is {}: next_page_token of an answer", quoted(token));
        problems.add("page_token", problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::refused;
    use crate::process::{Mode, Outcome, State};

    fn list(change: impl FnOnce(&mut pb::ListRequest)) -> Result<ListOrder, Error> {
        let mut request = pb::ListRequest::default();
        change(&mut request);
        request.try_into()
    }

    #[test]
    fn a_plain_list_is_filled_in() {
        let selector = Selector::default();
        let plain = ListOrder { selector, live_only: false, page_size: 50, after: None };
        assert_eq!(list(|_| {}), Ok(plain));
    }

    #[test]
    fn a_page_token_reads_back() {
        for birth in [0, 1, 4711, u64::MAX] {
            let read = list(|request| request.page_token = page_token(birth)).unwrap();
            assert_eq!(read.after, Some(birth));
        }
    }

    #[test]
    fn a_page_token_of_another_make_is_refused() {
        let long = format!("1-{}", "0".repeat(1 << 20));
        for token in ["1", "1-", "1-+1", "1-01", "1-FF", "2-1", "1-1ffffffffffffffff", "x", &long] {
            let told = refused(list(|request| request.page_token = token.to_owned()));
            assert!(told[0].starts_with("page_token: is \""), "{told:?}");
        }
    }

    #[test]
    fn a_selector_is_taken_as_it_is_meant() {
        let asked = pb::Selector {
            states: vec![3, 3, 6],
            outcomes: vec![1],
            r#ref: "r".into(),
            name: "n".into(),
            service: "s".into(),
            owner: "o".into(),
            workspace: "w".into(),
            labels: [("k".into(), "v".into())].into(),
            mode: pb::Mode::Service.into(),
            queue: "q".into(),
        };
        let meant = Selector {
            states: vec![State::Running, State::Exited],
            outcomes: vec![Outcome::Succeeded],
            reference: "r".into(),
            name: "n".into(),
            service: "s".into(),
            owner: "o".into(),
            workspace: "w".into(),
            labels: [("k".into(), "v".into())].into(),
            mode: Some(Mode::Service),
            queue: "q".into(),
        };
        let order = list(|request| request.selector = Some(asked)).unwrap();
        assert_eq!(order.selector, meant);
    }

    #[test]
    fn selector_has_the_limits_of_a_spec() {
        let labels = |count| (0..count).map(|n| (format!("k{n}"), "ä".repeat(256))).collect();
        let text = || "ä".repeat(256);
        let largest = pb::Selector {
            states: vec![3; 16],
            r#ref: text(),
            labels: labels(64),
            ..Default::default()
        };
        assert!(list(|request| request.selector = Some(largest)).is_ok());
        let text = || "ä".repeat(257);
        let told = refused(list(|request| {
            request.selector = Some(pb::Selector {
                states: vec![3; 17],
                outcomes: vec![1; 17],
                r#ref: text(),
                name: text(),
                service: text(),
                owner: text(),
                workspace: "a\n".into(),
                labels: labels(65),
                mode: 0,
                queue: text(),
            });
        }));
        let long = "has 257 characters: at most 256";
        assert_eq!(
            told,
            [
                "selector.states: has 17 values: at most 16".to_owned(),
                "selector.outcomes: has 17 values: at most 16".into(),
                format!("selector.ref: {long}"),
                format!("selector.name: {long}"),
                format!("selector.service: {long}"),
                format!("selector.owner: {long}"),
                "selector.workspace: has the control character \\n".into(),
                format!("selector.queue: {long}"),
                "selector.labels: has 65 labels: at most 64".into(),
            ]
        );
        let told = refused(list(|request| {
            let labels = [("a b".into(), String::new()), ("k".into(), "x".repeat(257))].into();
            request.selector = Some(pb::Selector { labels, ..Default::default() });
        }));
        assert!(told[0].starts_with("selector.labels[\"a b\"]: is no key"), "{told:?}");
        assert!(told[1].starts_with("selector.labels[\"k\"]: has a value"), "{told:?}");
    }

    #[test]
    fn a_bad_list_tells_all_that_is_bad() {
        let told = refused(list(|request| {
            let (states, outcomes) = (vec![3, 7], vec![0]);
            request.selector = Some(pb::Selector { states, outcomes, ..Default::default() });
            request.page_size = 1001;
        }));
        assert_eq!(
            told,
            [
                "selector.states[1]: is 7: one of STATE_QUEUED, STATE_STARTING, STATE_RUNNING, \
                 STATE_STOPPING, STATE_BACKOFF, STATE_EXITED",
                "selector.outcomes[0]: is 0: one of OUTCOME_SUCCEEDED, OUTCOME_FAILED, \
                 OUTCOME_CANCELED, OUTCOME_TIMED_OUT",
                "page_size: is 1001: up to 1000",
            ]
        );
    }
}
