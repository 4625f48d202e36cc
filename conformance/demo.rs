//! `larder demo` and the other commands that a newcomer types first.

use std::process::Output;

use tokio::process::Command;

use crate::larder::PATIENCE;

/// Runs the binary to its end, with temporary files in a folder of its own that must be empty afterwards.
async fn run(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command
        .args(arguments)
        .env_clear()
        .env("TMPDIR", folder.path())
        .current_dir(folder.path())
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output())
        .await
        .expect("an end in time")
        .expect("an output");
    let left: Vec<_> = folder.path().read_dir().expect("the folder").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn the_demo_pulls_twice_and_leaves_nothing_behind() {
    let output = run(&["demo", "--once"]).await;
    let (account, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(
        (output.status.code(), errors.as_str()),
        (Some(0), ""),
        "{account}"
    );
    let (first, second) = account.split_once("Second pull").expect("two pulls");
    assert_eq!(
        first.matches("/blobs/sha256:").count(),
        4 + 4,
        "client and larder ask for four blobs:\n{first}"
    );
    assert_eq!(
        second.matches("/blobs/sha256:").count(),
        4,
        "only the client asks:\n{second}"
    );
    assert_eq!(
        second.matches("  hit").count(),
        7,
        "all of the second pull are hits:\n{second}"
    );
    for tool in ["skopeo copy", "docker pull", "ctr images pull"] {
        assert!(second.contains(tool), "{tool}");
    }
}

#[tokio::test]
async fn a_wrong_command_line_is_a_usage_error() {
    for arguments in [&["serve", "--bogus"][..], &["bogus"], &[]] {
        let output = run(arguments).await;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains("Usage: larder"), "{arguments:?}");
    }
}

#[tokio::test]
async fn help_and_version_need_nothing() {
    for (arguments, expected) in [
        (&["--version"][..], concat!("larder ", env!("CARGO_PKG_VERSION"))),
        (&["--help"], "larder demo"),
        (&["serve", "--help"], "REGISTRY_CONFIGURATION_PATH"),
    ] {
        let output = run(arguments).await;
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(text(&output.stdout).contains(expected), "{arguments:?}");
    }
}
