//! What a spec adds to the clean environment.

use std::collections::BTreeMap;

use super::problems::Problems;
use super::values::without_nul;
use crate::grpc::clip::quoted;
use crate::grpc::pb;
use crate::process::Environment;

/// What every process is told by these names, and nobody else may tell it.
const OWN: [&str; 3] = ["PROCYARD_ID", "PROCYARD_RUN", "PROCYARD_OUTPUT"];

/// The field `spec.env`.
pub(super) fn environment(problems: &mut Problems, env: Option<pb::Environment>) -> Environment {
    let pb::Environment { set, inherit, inherit_all } = env.unwrap_or_default();
    // Sorted before they are looked at: the same request is refused with the same words.
    let set: BTreeMap<_, _> = set.into_iter().collect();
    for (name, value) in &set {
        variable(problems, name, value);
    }
    for (at, pattern) in inherit.iter().enumerate() {
        inherited(problems, at, pattern);
    }
    Environment { set, inherit, inherit_all }
}

fn variable(problems: &mut Problems, name: &str, value: &str) {
    let field = format_args!("spec.env.set[{}]", quoted(name));
    if let Some(problem) = misnamed(name) {
        problems.add(field, problem);
    } else if OWN.contains(&name) {
        problems.add(field, "is what procyard itself tells its processes: another name");
    } else {
        // What is wrong with it is reported; there is nothing else to do.
        let _ = without_nul(problems, field, value);
    }
}

/// A name to pass on, or the beginning of names and a `*`.
fn inherited(problems: &mut Problems, at: usize, pattern: &str) {
    let field = format_args!("spec.env.inherit[{at}]");
    let name = pattern.strip_suffix('*').unwrap_or(pattern);
    if pattern.is_empty() || name.contains('*') {
        let problem = format_args!("is {}: a name, or PREFIX*", quoted(pattern));
        problems.add(field, problem);
    } else if !name.is_empty()
        && let Some(problem) = misnamed(name)
    {
        problems.add(field, problem);
    }
}

fn misnamed(name: &str) -> Option<&'static str> {
    (name.is_empty() || name.contains(['=', '\0']))
        .then_some("is no name of a variable: not empty, without = and NUL")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::from_proto::refused;

    #[test]
    fn every_bad_variable_is_named() {
        let pairs = [("OK", "v"), ("", "v"), ("A=B", "v"), ("PROCYARD_ID", "v"), ("N", "\0")];
        let env = pb::Environment {
            set: pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            inherit: ["LC_*", "*", "PROCYARD_X", "", "A*B", "A=B"].map(Into::into).into(),
            inherit_all: true,
        };
        let told = refused(Problems::collect(|problems| Ok(environment(problems, Some(env)))));
        let no_name = "is no name of a variable: not empty, without = and NUL";
        let expected = [
            format!("spec.env.set[\"\"]: {no_name}"),
            format!("spec.env.set[\"A=B\"]: {no_name}"),
            "spec.env.set[\"N\"]: has a NUL as byte 0: none allowed".into(),
            "spec.env.set[\"PROCYARD_ID\"]: is what procyard itself tells its processes: another \
             name"
                .into(),
            "spec.env.inherit[3]: is \"\": a name, or PREFIX*".into(),
            "spec.env.inherit[4]: is \"A*B\": a name, or PREFIX*".into(),
            format!("spec.env.inherit[5]: {no_name}"),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn nothing_asked_for_is_the_clean_environment() {
        let clean = Problems::collect(|problems| Ok(environment(problems, None)));
        assert_eq!(clean, Ok(Environment::default()));
    }
}
