//! Who may have how many connections, so that nobody's lock others out.
//!
//! On the Unix socket the kernel says who connects: each user has a share, and root and whoever
//! runs the controller have a reserve. On TCP nobody is known before he has sent a token: those
//! who have not yet are few, they have little time, and a new one takes the place of the oldest
//! from the same address, or of the oldest of all. Those who are known have a share for each user.

use super::refusal::{Answer, Refusal};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// How many connections there may be. All together stay below 1,024, the usual limit of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// On the Unix socket.
    pub unix: usize,
    /// On the Unix socket, beyond those, for root and whoever runs the controller.
    pub reserved: usize,
    /// On the Unix socket, of one user.
    pub each_uid: usize,
    /// On TCP, of those who have sent a token.
    pub known: usize,
    /// On TCP, of one user who has sent a token.
    pub each_user: usize,
    /// On TCP, of those who have not.
    pub unknown: usize,
    /// On TCP, of those who have not, from one address.
    pub each_address: usize,
    /// On TCP, how long somebody may stay unknown.
    pub unknown_time: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            unix: 256,
            reserved: 32,
            each_uid: 64,
            known: 256,
            each_user: 64,
            unknown: 128,
            each_address: 64,
            unknown_time: Duration::from_secs(60),
        }
    }
}

/// All connections. Copies are the same.
#[derive(Clone)]
pub(super) struct Connections(Arc<(ConnectionLimits, Mutex<Open>)>);

#[derive(Default)]
struct Open {
    uids: BTreeMap<u32, usize>,
    users: BTreeMap<Arc<str>, usize>,
    /// By number, and so the oldest first, with what closes it.
    unknown: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
    next: u64,
}

/// A connection that is open; its place is free again when it is dropped.
pub(super) struct Connection {
    all: Connections,
    place: Mutex<Place>,
}

#[derive(Clone)]
enum Place {
    Local(u32),
    Unknown(u64),
    Known(Arc<str>),
}

impl Connections {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        Self(Arc::new((limits, Mutex::default())))
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self, place: Place) -> Arc<Connection> {
        Arc::new(Connection { all: self.clone(), place: Mutex::new(place) })
    }

    /// One on the Unix socket; none: this user, or all together, have too many. `privileged`: root
    /// or whoever runs the controller.
    pub(super) fn local(&self, uid: u32, privileged: bool) -> Option<Arc<Connection>> {
        let limits = &self.0.0;
        let mut open = self.open();
        let in_all: usize = open.uids.values().sum();
        let own = open.uids.get(&uid).copied().unwrap_or(0);
        let (all, each) = if privileged {
            let all = limits.unix + limits.reserved;
            // Whoever runs the controller may run others' jobs too.
            (all, limits.each_uid.max(all / 2))
        } else {
            (limits.unix, limits.each_uid)
        };
        if in_all >= all || own >= each {
            return None;
        }
        open.uids.insert(uid, own + 1);
        drop(open);
        Some(self.connection(Place::Local(uid)))
    }

    /// One on TCP. It is to be closed when the receiver is told so.
    pub(super) fn remote(&self, address: IpAddr) -> (Arc<Connection>, oneshot::Receiver<()>) {
        let limits = &self.0.0;
        let mut open = self.open();
        let own = |(from, _): &&(IpAddr, oneshot::Sender<()>)| *from == address;
        let too_many_here = open.unknown.values().filter(own).count() >= limits.each_address;
        let oldest = if too_many_here {
            open.unknown.iter().find(|(_, entry)| own(entry)).map(|(number, _)| *number)
        } else if open.unknown.len() >= limits.unknown {
            open.unknown.keys().next().copied()
        } else {
            None
        };
        if let Some((_, close)) = oldest.and_then(|number| open.unknown.remove(&number)) {
            // It may be gone already.
            let _ = close.send(());
        }
        let (close, closed) = oneshot::channel();
        let number = open.next;
        open.next += 1;
        open.unknown.insert(number, (address, close));
        drop(open);
        (self.connection(Place::Unknown(number)), closed)
    }

    pub(super) fn limits(&self) -> &ConnectionLimits {
        &self.0.0
    }
}

impl Connection {
    /// Somebody has sent a token over it.
    pub(super) fn is_of(&self, user: &Arc<str>) -> Answer<()> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        // Who came first counts: a proxy may send several users' requests over it.
        let Place::Unknown(number) = *place else { return Ok(()) };
        let limits = self.all.limits();
        let mut open = self.all.open();
        let in_all: usize = open.users.values().sum();
        let own = open.users.get(user).copied().unwrap_or(0);
        if own >= limits.each_user {
            return Err(Refusal::own_share(&format!("{own} of your connections are open")));
        }
        if in_all >= limits.known {
            let detail = format!("{in_all} connections are open");
            return Err(Refusal::unavailable(detail, "try again in a moment"));
        }
        open.unknown.remove(&number);
        open.users.insert(Arc::clone(user), own + 1);
        drop(open);
        *place = Place::Known(Arc::clone(user));
        Ok(())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        fn less<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
            match counts.get_mut(key) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(counts.remove(key)),
            }
        }
        let place = self.place.get_mut().unwrap_or_else(PoisonError::into_inner).clone();
        let mut open = self.all.open();
        match place {
            Place::Local(uid) => less(&mut open.uids, &uid),
            Place::Known(user) => less(&mut open.users, &user),
            Place::Unknown(number) => drop(open.unknown.remove(&number)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::net::Ipv4Addr;

    fn all() -> Connections {
        Connections::new(ConnectionLimits {
            unix: 4,
            reserved: 2,
            each_uid: 3,
            known: 3,
            each_user: 2,
            unknown: 4,
            each_address: 3,
            ..ConnectionLimits::default()
        })
    }

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    #[test]
    fn local_users_have_shares_and_root_a_reserve() {
        let all = all();
        let mut own: Vec<_> = (0..3).map(|_| all.local(1000, false).unwrap()).collect();
        assert!(all.local(1000, false).is_none());
        own.push(all.local(1001, false).unwrap());
        assert!(all.local(1002, false).is_none(), "all are taken");
        let root = all.local(0, true).unwrap();
        drop((own.pop(), root));
        assert!(all.local(1002, false).is_some());
    }

    #[test]
    fn a_new_remote_peer_takes_the_place_of_the_oldest_unknown_one() {
        let all = all();
        let mut own: Vec<_> = (0..3).map(|_| all.remote(address(1))).collect();
        let (_other, mut stays) = all.remote(address(2));
        let (_fourth, _) = all.remote(address(1));
        assert_eq!(own[0].1.try_recv(), Ok(()), "the oldest from there is closed");
        assert!(stays.try_recv().is_err() && own[1].1.try_recv().is_err());
        let (_third, _) = all.remote(address(3));
        assert_eq!(own[1].1.try_recv(), Ok(()), "the oldest of all is closed");
        // Who is known is not closed any more, and counts elsewhere.
        own[2].0.is_of(&"alice".into()).unwrap();
        let _more: Vec<_> = (0..9).map(|n| all.remote(address(10 + n))).collect();
        assert_ne!(own[2].1.try_recv(), Ok(()));
    }

    #[test]
    fn known_remote_users_have_shares() {
        let all = all();
        let alice: Arc<str> = "alice".into();
        let own: Vec<_> = (0..3).map(|_| all.remote(address(1)).0).collect();
        assert!(own[0].is_of(&alice).is_ok() && own[1].is_of(&alice).is_ok());
        assert_eq!(own[2].is_of(&alice).err().map(|r| r.status()), Some(429));
        assert!(own[2].is_of(&"bob".into()).is_ok());
        let other = all.remote(address(2)).0;
        assert_eq!(other.is_of(&"carol".into()).err().map(|r| r.status()), Some(503));
        drop(own);
        assert!(other.is_of(&"carol".into()).is_ok());
    }
}
