//! Programs as List shows them: cut, and told to be cut.

use pb::spec::Program;

use super::*;

fn script(code: &str) -> pb::Spec {
    let script = pb::Script { code: code.into(), filename: "job.sh".into(), ..Default::default() };
    pb::Spec { program: Some(Program::Script(script)), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_programs_are_cut_in_list_and_whole_in_get() {
    let service = TestService::start();
    let mut client = service.client().await;
    let long = "x".repeat(100_000);
    let line = format!("true {long}");
    let cases = [
        ("short", shell("true"), false),
        ("line", shell(&line), true),
        ("argument", argv(&["true", "a", &long, "b"]), true),
        ("many", argv(&[&["true"][..], &["y"; 10_000]].concat()), true),
        ("script", script(&format!("# {long}\ntrue")), true),
    ];
    for (id, spec, _) in &cases {
        finish(&mut client, id, spec.clone()).await;
    }
    let listed = list(&mut client).await;
    for (id, spec, is_cut) in &cases {
        let whole = get(&mut client, id).await;
        let sent = spec.program.clone();
        let script = matches!(sent, Some(Program::Script(_)));
        assert!(script || whole.spec.as_ref().unwrap().program == sent, "{id}");
        assert!(!whole.spec_truncated);
        let shown = listed.iter().find(|process| process.id == *id).unwrap();
        assert_eq!(shown.spec_truncated, *is_cut, "{id}");
        let program = shown.spec.as_ref().unwrap().program.as_ref().unwrap();
        match program {
            Program::Shell(line) if *is_cut => {
                assert!(line.starts_with("true xxx") && line.ends_with("x…"), "{line}");
            }
            Program::Argv(pb::Argv { args, .. }) if *id == "argument" => {
                assert_eq!(args[..2], ["true", "a"]);
                assert!(args.len() == 3 && args[2].ends_with("x…"), "{args:?}");
            }
            Program::Script(script) => {
                assert_eq!((script.code.as_str(), script.filename.as_str()), ("", "job.sh"));
            }
            _ => {}
        }
        let bytes = format!("{program:?}").len();
        assert!(bytes < 4096, "{id} has {bytes} bytes");
    }
    let shown = service.procyard(&["ps", "--all"]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("/bin/sh: job.sh"), "{shown}");
}
