//! Who asks, and what he may do.

use super::quotas::{Quota, QuotaFile};
use super::tokens::Tokens;
use nix::unistd::{Group, Uid, User};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use wattline_core::ids::UserId;
use wattline_core::units::EurosPerSecond;

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// See and change his own jobs.
    User,
    /// See everything, change nothing.
    ReadOnly,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Admin => "admin",
            Self::User => "user",
            Self::ReadOnly => "read-only",
        })
    }
}

impl FromStr for Role {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "admin" => Ok(Self::Admin),
            "user" => Ok(Self::User),
            "read-only" => Ok(Self::ReadOnly),
            _ => Err(()),
        }
    }
}

/// Who may do what.
#[derive(Clone, Debug)]
pub struct Access {
    /// Users who may do everything, beside root and whoever runs the controller.
    pub admins: Vec<String>,
    /// Members of this group too.
    pub admin_group: Option<String>,
    /// What users may ask for at most.
    pub quotas: QuotaFile,
    /// The highest weight of a user's job, before what `quotas` says of all.
    pub max_weight: Option<EurosPerSecond>,
    /// The same for these users, before what `quotas` says of them.
    pub max_weights: BTreeMap<String, EurosPerSecond>,
    /// Tokens for TCP.
    pub tokens: Tokens,
    /// Who runs the controller.
    pub own_uid: u32,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            admins: Vec::new(),
            admin_group: None,
            quotas: QuotaFile::default(),
            max_weight: None,
            max_weights: BTreeMap::new(),
            tokens: Tokens::default(),
            own_uid: nix::unistd::geteuid().as_raw(),
        }
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    Unix { uid: u32 },
    Tcp(SocketAddr),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { uid } => write!(f, "unix uid {uid}"),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// Who asks.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) user: Arc<str>,
    pub(super) id: UserId,
    pub(super) role: Role,
    pub(super) max_weight: Option<EurosPerSecond>,
    pub(super) quota: Quota,
}

impl Identity {
    /// Whether he sees this user's things.
    pub(super) fn sees(&self, user: &str) -> bool {
        self.role != Role::User || *self.user == *user
    }

    /// Whether he may change this user's things.
    pub(super) fn changes(&self, user: &str) -> bool {
        match self.role {
            Role::Admin => true,
            Role::User => *self.user == *user,
            Role::ReadOnly => false,
        }
    }
}

impl Access {
    /// Who is at the other end of a Unix socket. Asks the user database, which may take a while.
    pub(super) fn by_uid(&self, uid: u32) -> Identity {
        let account = User::from_uid(Uid::from_raw(uid)).ok().flatten();
        let name = account.as_ref().map_or_else(|| format!("uid-{uid}"), |user| user.name.clone());
        let in_group = || {
            let group = Group::from_name(self.admin_group.as_ref()?).ok()??;
            let member = group.mem.contains(&name);
            Some(member || account.as_ref().is_some_and(|user| user.gid == group.gid))
        };
        let admin =
            self.is_privileged(uid) || self.admins.contains(&name) || in_group().unwrap_or(false);
        let role = if admin { Role::Admin } else { Role::User };
        self.identity(&name, UserId(uid), role)
    }

    /// Whether this is root or whoever runs the controller. Asks nobody.
    pub(super) fn is_privileged(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid
    }

    /// Whose token this is. He may do what the token says and no more, whoever he is elsewhere.
    pub(super) fn by_token(&self, token: &str) -> Option<Identity> {
        let entry = self.tokens.find(token)?;
        let role = entry.role;
        // What the engine counts by; who may do what goes by the name.
        let account = User::from_name(&entry.user).ok().flatten();
        let id = account.map_or_else(|| 0x8000_0000 | fnv(&entry.user), |user| user.uid.as_raw());
        Some(self.identity(&entry.user, UserId(id), role))
    }

    fn identity(&self, name: &str, id: UserId, role: Role) -> Identity {
        let quota = self.quotas.of(name);
        let named = self.quotas.users.get(name).and_then(|own| own.weight);
        let weight = self.max_weights.get(name).copied().or(named).or(self.max_weight);
        let weight = weight.unwrap_or(quota.weight);
        // A user may not have more than his accounts.
        let weight = match self.quotas.account_weight(name) {
            Some(most) if most.get() < weight.get() => most,
            _ => weight,
        };
        let max_weight = (role != Role::Admin).then_some(weight);
        Identity { user: name.into(), id, role, max_weight, quota }
    }
}

/// Tells names apart, mostly.
fn fnv(text: &str) -> u32 {
    text.bytes()
        .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
        & 0x7fff_ffff
}
