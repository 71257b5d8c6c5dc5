//! Running the command as a user does.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs `wattline` with these arguments, in the repository's root.
pub(crate) fn wattline(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wattline"))
        .args(args)
        .current_dir(root())
        .output()
        .unwrap_or_else(|error| panic!("cannot run wattline: {error}"))
}

/// Standard output of a run that must succeed.
#[allow(dead_code, reason = "not every test prints")]
pub(crate) fn stdout(args: &[&str]) -> String {
    let output = wattline(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap_or_else(|_| panic!("{args:?}: not text"))
}

/// A run that must fail as bad input does: exit code 2, nothing on standard output, one message
/// that holds all these parts, and no panic.
#[allow(dead_code, reason = "not every test fails")]
pub(crate) fn refused(args: &[&str], parts: &[&str]) {
    let output = wattline(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
    assert!(output.stdout.is_empty(), "{args:?} printed something");
    assert!(!errors.contains("panicked"), "{args:?}: {errors}");
    assert_eq!(errors.matches("error:").count(), 1, "{args:?}: {errors}");
    for part in parts {
        assert!(errors.contains(part), "{args:?}: '{errors}' does not say '{part}'");
    }
}
