//! Which connections there may be: which one a newcomer replaces, and when it is refused. Pure.
//!
//! ```text
//!                  accepted
//!      caller known │     │ caller not known
//!                   ▼     ▼
//!   kept ◄── first call ── unauthenticated
//!   surplus ◄──────┘
//! ```
//!
//! A *kept* connection is never closed to make room. Kept connections are bounded per caller and in all,
//! and take at most three quarters of the places, the last quarter of those for admins only; an
//! authenticated connection beyond these bounds is *surplus*. When all places are taken, a newcomer
//! replaces the oldest unauthenticated connection of the origin that has the most, or else the oldest
//! surplus one of the caller that has the most: so there is always a place for the next client, and a
//! flood replaces itself. An origin never has more unauthenticated connections than its share.
//!
//! An unauthenticated newcomer does not replace the connection of a heaviest origin that has just
//! connected. It replaces the oldest unauthenticated connection of all instead, unless its own origin is
//! as heavy: only then, and beyond the share of its origin, is a newcomer refused.

use std::time::{Duration, Instant};

use crate::access::{Caller, Role};
use crate::server::origin::{AgeQueue, Origin, OriginQueue};

/// A connection that is younger than this is not closed for one of the same origin. It bounds how often a
/// client that reconnects in a loop makes the server set up a connection: the rest are closed at once,
/// which costs next to nothing. A client that has sent its first call needs less.
const EVICTION_MIN_AGE: Duration = Duration::from_millis(50);

/// Fewest places for which a caller may keep more than one.
const MIN_PLACES: usize = 8;

/// What becomes of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Admission {
    /// It gets the next id. `evicted` is to be closed for it; it is not counted any more.
    Admit { id: u64, evicted: Option<u64> },
    /// It is to be closed.
    Refuse,
}

/// What has to be closed for a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Eviction {
    Unneeded,
    /// This connection.
    Of(u64),
    /// No connection may be closed for it.
    Denied,
}

/// All connections on sockets of one kind, Unix or TCP.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    places: usize,
    last_id: u64,
    unauthenticated: OriginQueue<Instant>,
    /// By the names of their callers, as are those in surplus.
    kept: AgeQueue<String, ()>,
    surplus: AgeQueue<String, ()>,
}

impl ConnectionLimits {
    pub(super) fn new(places: usize) -> ConnectionLimits {
        ConnectionLimits {
            places: places.max(MIN_PLACES),
            last_id: 0,
            unauthenticated: OriginQueue::default(),
            kept: AgeQueue::default(),
            surplus: AgeQueue::default(),
        }
    }

    /// Decides about a new connection. `caller` is known at this point on Unix sockets, where the
    /// kernel reports the user.
    pub(super) fn admit(
        &mut self,
        origin: Origin,
        caller: Option<&Caller>,
        now: Instant,
    ) -> Admission {
        let eviction = match caller {
            Some(_) => self.eviction_for_known(),
            None => self.eviction_for_unknown(origin, now),
        };
        let evicted = match eviction {
            Eviction::Unneeded => None,
            Eviction::Of(id) => Some(id),
            Eviction::Denied => return Admission::Refuse,
        };
        if let Some(evicted) = evicted {
            self.remove(evicted);
        }
        self.last_id += 1;
        let id = self.last_id;
        match caller {
            Some(caller) => self.insert_authenticated(id, caller),
            None => self.unauthenticated.insert(id, origin, now),
        }
        Admission::Admit { id, evicted }
    }

    /// Counts a connection as its caller's from now on.
    pub(super) fn authenticate(&mut self, id: u64, caller: &Caller) {
        if self.unauthenticated.remove(id).is_some() {
            self.insert_authenticated(id, caller);
        }
    }

    /// Forgets a connection, which may be forgotten already.
    pub(super) fn remove(&mut self, id: u64) {
        self.unauthenticated.remove(id);
        self.kept.remove(id);
        self.surplus.remove(id);
    }

    /// The eviction for a connection of a known caller.
    fn eviction_for_known(&self) -> Eviction {
        if self.len() < self.places {
            return Eviction::Unneeded;
        }
        let unauthenticated = self.unauthenticated.oldest_of_heaviest().map(|(id, _)| id);
        unauthenticated.map_or_else(|| self.surplus_eviction(), Eviction::Of)
    }

    /// The eviction for a connection whose caller is not known yet.
    fn eviction_for_unknown(&self, origin: Origin, now: Instant) -> Eviction {
        let own_count = self.unauthenticated.count_of(&origin);
        let is_over_share = own_count >= self.share_of(origin);
        if !is_over_share && self.len() < self.places {
            return Eviction::Unneeded;
        }
        let heaviest = if is_over_share { Some(&origin) } else { self.unauthenticated.heaviest() };
        let Some(heaviest) = heaviest else { return self.surplus_eviction() };
        match self.unauthenticated.oldest_of(heaviest) {
            Some((id, since)) if now.saturating_duration_since(*since) >= EVICTION_MIN_AGE => {
                Eviction::Of(id)
            }
            _ if own_count >= self.unauthenticated.count_of(heaviest) => Eviction::Denied,
            _ => self.unauthenticated.oldest().map_or(Eviction::Denied, |(id, _)| Eviction::Of(id)),
        }
    }

    /// The eviction of the oldest connection of the caller that has the most in surplus.
    fn surplus_eviction(&self) -> Eviction {
        self.surplus.oldest_of_heaviest().map_or(Eviction::Denied, |(id, ())| Eviction::Of(id))
    }

    /// Unauthenticated connections that an origin may have. A user without a grant has little to do on
    /// a Unix socket; a network address may be that of many clients, callers among them, so that its
    /// share is as large as others allow.
    fn share_of(&self, origin: Origin) -> usize {
        match origin {
            Origin::User(_) | Origin::Child(_) => (self.places / 16).max(1),
            Origin::Ipv4(_) | Origin::Ipv6Network(_) => self.places / 2,
        }
    }

    fn insert_authenticated(&mut self, id: u64, caller: &Caller) {
        let most = match caller.grant.role {
            Role::Admin => self.places * 3 / 4,
            _ => self.places / 2,
        };
        let is_surplus =
            self.kept.len() >= most || self.kept.count_of(&caller.name) >= self.places / 4;
        let queue = if is_surplus { &mut self.surplus } else { &mut self.kept };
        queue.insert(id, caller.name.clone(), ());
    }

    fn len(&self) -> usize {
        self.unauthenticated.len() + self.kept.len() + self.surplus.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Grant;

    const PLACES: usize = 64;

    struct Model {
        limits: ConnectionLimits,
        now: Instant,
    }

    impl Model {
        fn new() -> Model {
            Model { limits: ConnectionLimits::new(PLACES), now: Instant::now() }
        }

        /// Admits a connection some time after the one before.
        fn admit(&mut self, uid: u32, caller: Option<&Caller>) -> (u64, Option<u64>) {
            self.now += EVICTION_MIN_AGE;
            match self.limits.admit(Origin::User(Some(uid)), caller, self.now) {
                Admission::Admit { id, evicted } => (id, evicted),
                Admission::Refuse => panic!("the connection is refused"),
            }
        }

        fn fill(&mut self, count: usize, uid: u32, caller: Option<&Caller>) {
            for _ in 0..count {
                assert_eq!(self.admit(uid, caller).1, None);
            }
        }
    }

    fn caller(name: &str, role: Role) -> Caller {
        Caller { name: name.into(), grant: Grant::of(role) }
    }

    #[test]
    fn unknown_callers_of_one_origin_replace_each_other() {
        let mut model = Model::new();
        let (other, _) = model.admit(1, None);
        let (first, _) = model.admit(2, None);
        model.fill(PLACES / 16 - 1, 2, None);
        assert_eq!(model.admit(2, None).1, Some(first));
        assert_eq!(model.admit(2, None).1, Some(first + 1));
        assert_eq!(model.limits.unauthenticated.count_of(&Origin::User(Some(2))), PLACES / 16);
        assert!(model.limits.unauthenticated.remove(other).is_some());
    }

    #[test]
    fn reconnecting_in_a_loop_is_refused() {
        let mut model = Model::new();
        let now = model.now;
        let mut admit = |at| model.limits.admit(Origin::User(None), None, at);
        for _ in 0..PLACES / 16 {
            assert!(matches!(admit(now), Admission::Admit { evicted: None, .. }));
        }
        assert_eq!(admit(now + EVICTION_MIN_AGE / 2), Admission::Refuse);
        let later = admit(now + EVICTION_MIN_AGE);
        assert!(matches!(later, Admission::Admit { evicted: Some(1), .. }));
    }

    #[test]
    fn heaviest_origin_gives_way_when_all_places_are_taken() {
        let mut model = Model::new();
        let address = |n| Origin::of_address([192, 0, 2, n].into());
        let admit = |model: &mut Model, origin, caller| {
            model.now += EVICTION_MIN_AGE;
            match model.limits.admit(origin, caller, model.now) {
                Admission::Admit { evicted, .. } => evicted,
                Admission::Refuse => panic!("the connection is refused"),
            }
        };
        let light = PLACES / 2 - 1;
        (0..light).for_each(|_| assert_eq!(admit(&mut model, address(1), None), None));
        let heavy = PLACES - light;
        (0..heavy - 1).for_each(|_| assert_eq!(admit(&mut model, address(2), None), None));
        assert_eq!(admit(&mut model, address(3), None), None);
        assert_eq!(model.limits.len(), PLACES);
        let first_heavy = light as u64 + 1;
        assert_eq!(admit(&mut model, address(4), None), Some(first_heavy));
        let admin = caller("uid:0", Role::Admin);
        // At once, however young the others are.
        let admitted = model.limits.admit(Origin::User(Some(0)), Some(&admin), model.now);
        assert!(matches!(admitted, Admission::Admit { evicted: Some(1), .. }));
        assert_eq!(model.limits.len(), PLACES);
    }

    #[test]
    fn authenticated_connections_are_kept() {
        let mut model = Model::new();
        let (id, _) = model.admit(1, None);
        model.limits.authenticate(id, &caller("token:ci", Role::Viewer));
        for uid in 1..100 {
            for _ in 0..PLACES / 16 {
                assert_ne!(model.admit(uid, None).1, Some(id));
            }
        }
        assert_eq!(model.limits.kept.count_of(&"token:ci".to_owned()), 1);
        model.limits.remove(id);
        assert_eq!(model.limits.kept.len(), 0);
    }

    #[test]
    fn connections_beyond_the_share_of_a_caller_are_replaced() {
        let mut model = Model::new();
        let (greedy, admin) = (caller("uid:1", Role::Operator), caller("uid:0", Role::Admin));
        model.fill(PLACES, 1, Some(&greedy));
        assert_eq!(model.limits.kept.len(), PLACES / 4);
        let first_surplus = PLACES as u64 / 4 + 1;
        assert_eq!(model.admit(0, Some(&admin)).1, Some(first_surplus));
        assert_eq!(model.admit(9, None).1, Some(first_surplus + 1));
        // The next client of an unknown caller replaces the first, and no surplus connection.
        let unknown = model.limits.last_id;
        assert_eq!(model.admit(8, None).1, Some(unknown));
    }

    #[test]
    fn young_heavy_origin_does_not_keep_others_out() {
        let mut model = Model::new();
        // Many origins of one connection each, then a heavier one that has just connected.
        let heavy = PLACES / 16;
        for uid in 1..=(PLACES - heavy) as u32 {
            model.fill(1, uid, None);
        }
        let mut admit = |uid| model.limits.admit(Origin::User(Some(uid)), None, model.now);
        (0..heavy).for_each(|_| assert_ne!(admit(1000), Admission::Refuse));
        assert!(matches!(admit(1001), Admission::Admit { evicted: Some(1), .. }));
        assert!(matches!(admit(1002), Admission::Admit { evicted: Some(2), .. }));
        assert_eq!(admit(1000), Admission::Refuse, "it is of the heaviest origin");
        assert_eq!(model.limits.len(), PLACES);
    }

    #[test]
    fn surplus_of_the_greediest_caller_is_replaced_first() {
        let mut model = Model::new();
        let (modest, greedy) = (caller("uid:1", Role::Operator), caller("uid:2", Role::Operator));
        model.fill(PLACES / 4 + 1, 1, Some(&modest));
        model.fill(PLACES * 3 / 4 - 1, 2, Some(&greedy));
        let first_greedy = PLACES as u64 / 4 + 2;
        let first_surplus = first_greedy + PLACES as u64 / 4;
        assert_eq!(model.admit(3, None).1, Some(first_surplus));
    }

    #[test]
    fn places_are_left_for_admins_and_for_newcomers() {
        let mut model = Model::new();
        for uid in 1..=4 {
            let operator = caller(&format!("uid:{uid}"), Role::Operator);
            model.fill(PLACES / 4, uid, Some(&operator));
        }
        assert_eq!((model.limits.kept.len(), model.limits.len()), (PLACES / 2, PLACES));
        let admins = ["uid:0", "uid:9"].map(|name| caller(name, Role::Admin));
        for admin in &admins {
            for _ in 0..PLACES / 4 {
                assert!(model.admit(0, Some(admin)).1.is_some());
            }
        }
        assert_eq!(model.limits.kept.len(), PLACES * 3 / 4);
        // Still a newcomer has a place.
        assert!(model.admit(7, None).1.is_some());
        assert_eq!(model.limits.len(), PLACES);
    }

    #[test]
    fn few_places_are_enough_for_every_share() {
        let mut limits = ConnectionLimits::new(0);
        let now = Instant::now();
        let admin = caller("uid:0", Role::Admin);
        for n in 1..100 {
            let at = now + n * EVICTION_MIN_AGE;
            for caller in [None, Some(&admin)] {
                let admitted = limits.admit(Origin::User(Some(n)), caller, at);
                assert_ne!(admitted, Admission::Refuse);
            }
            assert!(limits.len() <= MIN_PLACES);
        }
    }
}
