//! Where the controller answers, if nobody says otherwise.

use std::path::PathBuf;

/// The user's own place, or the system's.
pub(crate) fn usual() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder).join("wattline.sock"),
        _ => PathBuf::from("/run/wattline/wattline.sock"),
    }
}
