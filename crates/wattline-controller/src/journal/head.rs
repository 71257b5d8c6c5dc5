//! The row that says how far the journal goes. It changes in the same transaction as what it speaks
//! of, so that entries that are missing at the end are noticed, and it carries the epoch: whoever
//! opens the journal for writing raises it, and whoever writes must find it as he left it.

use super::chain::{self, Link};
use rusqlite::{Connection, OptionalExtension};

pub(super) const SCHEMA: &str = "
CREATE TABLE head (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    journal TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    last INTEGER NOT NULL,
    link INTEGER NOT NULL,
    pruned INTEGER NOT NULL,
    pruned_link INTEGER NOT NULL,
    pruned_jobs INTEGER NOT NULL,
    about INTEGER NOT NULL,
    checksum INTEGER NOT NULL
) STRICT;
";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Drawn at random when the journal was begun.
    pub(super) journal: String,
    pub(super) epoch: u64,
    /// The last entry.
    pub(super) last: u64,
    pub(super) link: Link,
    /// The last entry that was thrown away.
    pub(super) pruned: u64,
    pub(super) pruned_link: Link,
    /// How many jobs were submitted in entries that were thrown away.
    pub(super) pruned_jobs: u64,
    /// The checksum of what the journal is about.
    pub(super) about: u32,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Yes,
    /// The row is not as this writer left it: somebody else writes.
    NotMine,
}

impl Head {
    pub(super) fn new(journal: String, about: u32) -> Self {
        let link = chain::first(&journal);
        Self {
            journal,
            epoch: 0,
            last: 0,
            link,
            pruned: 0,
            pruned_link: link,
            pruned_jobs: 0,
            about,
        }
    }

    fn checksum(&self) -> u32 {
        let numbers = [
            self.epoch,
            self.last,
            u64::from(self.link),
            self.pruned,
            u64::from(self.pruned_link),
            self.pruned_jobs,
            u64::from(self.about),
        ];
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        chain::checksum(&self.journal, &[&bytes])
    }

    /// Reads the row. `Err` in the result: it is missing or damaged.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Result<Self, String>> {
        let ask = "SELECT journal, epoch, last, link, pruned, pruned_link, pruned_jobs, about, \
                   checksum FROM head WHERE id = 1";
        let row = connection.prepare_cached(ask)?.query_row((), |row| {
            let head = Self {
                journal: row.get(0)?,
                epoch: row.get(1)?,
                last: row.get(2)?,
                link: row.get(3)?,
                pruned: row.get(4)?,
                pruned_link: row.get(5)?,
                pruned_jobs: row.get(6)?,
                about: row.get(7)?,
            };
            Ok((head, row.get::<_, u32>(8)?))
        });
        Ok(match row.optional()? {
            None => Err("the row that says how far it goes is missing".to_owned()),
            Some((head, checksum)) if head.checksum() == checksum => Ok(head),
            Some(_) => Err("the row that says how far it goes is damaged".to_owned()),
        })
    }

    pub(super) fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let insert = "INSERT INTO head VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let values = (
            &self.journal,
            self.epoch,
            self.last,
            self.link,
            self.pruned,
            self.pruned_link,
            self.pruned_jobs,
            self.about,
            self.checksum(),
        );
        connection.execute(insert, values).map(drop)
    }

    /// Puts `new` in the place of this one, if this one is there.
    pub(super) fn replace(&self, connection: &Connection, new: &Self) -> rusqlite::Result<Written> {
        let update = "UPDATE head SET epoch = ?1, last = ?2, link = ?3, pruned = ?4, \
                      pruned_link = ?5, pruned_jobs = ?6, about = ?7, checksum = ?8 \
                      WHERE id = 1 AND epoch = ?9 AND checksum = ?10";
        let values = (
            new.epoch,
            new.last,
            new.link,
            new.pruned,
            new.pruned_link,
            new.pruned_jobs,
            new.about,
            new.checksum(),
            self.epoch,
            self.checksum(),
        );
        let changed = connection.prepare_cached(update)?.execute(values)?;
        Ok(if changed == 1 { Written::Yes } else { Written::NotMine })
    }

    /// Whether this one is still there.
    pub(super) fn stands(&self, connection: &Connection) -> rusqlite::Result<Written> {
        let ask = "SELECT count(*) FROM head WHERE id = 1 AND epoch = ?1 AND checksum = ?2";
        let there: i64 = connection
            .prepare_cached(ask)?
            .query_row((self.epoch, self.checksum()), |row| row.get(0))?;
        Ok(if there == 1 { Written::Yes } else { Written::NotMine })
    }
}
