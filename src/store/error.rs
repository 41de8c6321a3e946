//! Why the store did not do what it was asked.

use std::io;
use std::path::PathBuf;

use rusqlite::ErrorCode;

/// Why the store did not do what it was asked. Nothing changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The state directory cannot be used.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Directory {
        /// What could not be done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// The kernel's word.
        source: io::Error,
    },
    /// It belongs to another user.
    #[error("{} belongs to another user (uid {owner})", .path.display())]
    NotOurs {
        /// The directory, or a file in it.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// It holds files of others.
    #[error(
        "cannot use {} as state directory: it holds files that procyard did not make ({names}): \
         choose an empty directory",
        .path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// The first few names.
        names: String,
    },
    /// Another instance uses it.
    #[error("{} is used by another procyard{}", .path.display(), pid_words(*.pid))]
    InUse {
        /// The directory.
        path: PathBuf,
        /// That instance, if it said so.
        pid: Option<u32>,
    },
    /// The database could not be opened.
    #[error("the store {}: {reason}", .path.display())]
    Open {
        /// Its file.
        path: PathBuf,
        /// Why.
        #[source]
        reason: Box<StoreError>,
    },
    /// A newer procyard has written it.
    #[error("it has version {found}, this procyard knows versions up to {known}: use a newer one")]
    Newer {
        /// Version of the database.
        found: u32,
        /// The newest version that is known here.
        known: u32,
    },
    /// It could not be brought to a newer version.
    #[error("it cannot be brought to version {version}: {reason}")]
    Migration {
        /// That version.
        version: u32,
        /// Why.
        #[source]
        reason: Box<StoreError>,
    },
    /// The file system cannot share memory between connections.
    #[error("its file system has no shared memory (journal mode {0:?}): use a local one")]
    NoLog(String),
    /// The file is no database, or a damaged one.
    #[error("it is damaged: {0}")]
    Damaged(#[source] rusqlite::Error),
    /// The same, as was found by looking at it.
    #[error("it is damaged: {0}")]
    Torn(String),
    /// A row does not say what it should.
    #[error("{what} cannot be read: {source}")]
    Unreadable {
        /// Which row.
        what: String,
        /// Why.
        source: serde_json::Error,
    },
    /// There is no record to be changed.
    #[error("there is no record of {0:?}")]
    NoRecord(String),
    /// The database did not do it.
    #[error("{0}")]
    Database(#[source] rusqlite::Error),
    /// Words that cannot be written.
    #[error("{0}")]
    Unwritable(#[from] serde_json::Error),
    /// There is no thread for it.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The store has ended.
    #[error("the store has ended")]
    Ended,
}

impl StoreError {
    /// The database is not what was written to it: SQLite says so, or a row does not have the
    /// words that it should. A statement that fails is a mistake of ours, or a full disk, and no
    /// reason to put a database aside.
    pub(super) fn is_damage(&self) -> bool {
        use rusqlite::Error;
        match self {
            StoreError::Damaged(_) | StoreError::Unreadable { .. } | StoreError::Torn(_) => true,
            StoreError::Database(error) => matches!(
                error,
                Error::FromSqlConversionFailure(..)
                    | Error::IntegralValueOutOfRange(..)
                    | Error::InvalidColumnType(..)
                    | Error::QueryReturnedNoRows
                    | Error::Utf8Error(..)
            ),
            StoreError::Open { reason, .. } => reason.is_damage(),
            _ => false,
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> StoreError {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                StoreError::Damaged(error)
            }
            _ => StoreError::Database(error),
        }
    }
}

fn pid_words(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}
