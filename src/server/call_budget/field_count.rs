//! Counts the fields of a request while it arrives, before it is decoded.
//!
//! A field costs the decoder, the checks and the actor about the same whether it is empty or has a kilobyte,
//! so a bound on bytes does not bound the time that a request takes on the server's only thread. The
//! counter knows from the descriptors which fields are messages and looks into those, and only into
//! those. It refuses what the decoder refuses, and what no encoder makes and the decoder reads in another way: it
//! skips groups without a look at the messages in them, and takes the entries of maps with any wire type.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use crate::grpc::pb;
use crate::grpc::pb::process_service_server::SERVICE_NAME;

/// Messages within messages that the decoder takes.
const MAX_DEPTH: usize = 100;

/// Bits of a varint at most.
const VARINT_BITS: u32 = 64;

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    // The reflection service reads the same bytes when the server starts.
    let files = FileDescriptorSet::decode(pb::FILE_DESCRIPTORS).unwrap_or_default();
    Schema::new(&files)
});

/// What the counter knows of all messages.
#[derive(Debug, Default)]
struct Schema {
    /// The fields of each message, by their numbers.
    messages: Vec<Vec<Kind>>,
    /// The request of each method, by its name.
    requests: HashMap<String, usize>,
}

/// What a length-delimited field holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    /// One value, or the field is not known.
    #[default]
    Value,
    /// A message, by its index.
    Message(usize),
    /// Numbers, of which each has a byte at least.
    Packed,
}

impl Schema {
    fn new(files: &FileDescriptorSet) -> Schema {
        let mut found = Vec::new();
        for file in &files.file {
            find_messages(&format!(".{}", file.package()), &file.message_type, &mut found);
        }
        let indices: HashMap<&str, usize> =
            found.iter().enumerate().map(|(index, (name, _))| (name.as_str(), index)).collect();
        let messages = found.iter().map(|(_, message)| fields(message, &indices)).collect();
        let services = files.file.iter().flat_map(|file| {
            file.service
                .iter()
                .filter(|service| format!("{}.{}", file.package(), service.name()) == SERVICE_NAME)
        });
        let methods = services.flat_map(|service| &service.method);
        let requests = methods.filter_map(|method| {
            Some((method.name().to_owned(), *indices.get(method.input_type())?))
        });
        Schema { requests: requests.collect(), messages }
    }

    fn kind(&self, message: usize, number: u64) -> Kind {
        let fields = self.messages.get(message).map_or(&[][..], Vec::as_slice);
        usize::try_from(number)
            .ok()
            .and_then(|number| fields.get(number).copied())
            .unwrap_or_default()
    }
}

/// Finds messages with their full names, nested ones too.
fn find_messages<'a>(
    scope: &str,
    messages: &'a [DescriptorProto],
    found: &mut Vec<(String, &'a DescriptorProto)>,
) {
    for message in messages {
        let name = format!("{scope}.{}", message.name());
        find_messages(&name, &message.nested_type, found);
        found.push((name, message));
    }
}

fn fields(message: &DescriptorProto, indices: &HashMap<&str, usize>) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for field in &message.field {
        let kind = kind(field, indices);
        if let (true, Ok(number)) = (kind != Kind::Value, usize::try_from(field.number())) {
            kinds.resize(kinds.len().max(number + 1), Kind::Value);
            kinds[number] = kind;
        }
    }
    kinds
}

fn kind(field: &FieldDescriptorProto, indices: &HashMap<&str, usize>) -> Kind {
    match field.r#type() {
        Type::Message => {
            indices.get(field.type_name()).map_or(Kind::Value, |at| Kind::Message(*at))
        }
        Type::String | Type::Bytes | Type::Group => Kind::Value,
        _ if field.label() == Label::Repeated => Kind::Packed,
        _ => Kind::Value,
    }
}

/// The type of a method's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestType(usize);

impl RequestType {
    /// The request of a method of the process service.
    pub(super) fn of_method(name: &str) -> Option<RequestType> {
        SCHEMA.requests.get(name).copied().map(RequestType)
    }
}

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It has more fields than it may have.
    TooManyFields,
    /// It has a group, or a message with another wire type than messages have.
    WireType,
    /// The decoder refuses it, too.
    Undecodable,
}

/// Counts the fields of one message, of which bytes come in pieces of any size.
#[derive(Debug)]
pub(super) struct FieldCounter {
    /// Fields that may still come.
    left: usize,
    /// Bytes that have come.
    position: u64,
    /// The messages that the next byte is in, outermost first.
    levels: Vec<Level>,
    step: Step,
    varint: Varint,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    message: usize,
    /// Where it ends.
    end: u64,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum Step {
    Tag,
    /// A number, which does not matter.
    Number,
    /// The length of what a field holds.
    Length(Kind),
    /// What a field holds, up to a position.
    Skip(u64),
}

#[derive(Debug, Default)]
struct Varint {
    value: u64,
    bits: u32,
}

impl Varint {
    /// The number, when this is its last byte.
    fn add(&mut self, byte: u8) -> Option<u64> {
        if self.bits < VARINT_BITS {
            self.value |= u64::from(byte & 0x7f) << self.bits;
            self.bits += 7;
        }
        (byte < 0x80).then(|| std::mem::take(self).value)
    }
}

impl FieldCounter {
    /// Counts up to a number of fields.
    pub(super) fn new(RequestType(message): RequestType, max_fields: usize) -> FieldCounter {
        let levels = vec![Level { message, end: u64::MAX }];
        FieldCounter {
            left: max_fields,
            position: 0,
            levels,
            step: Step::Tag,
            varint: Varint::default(),
        }
    }

    /// Takes the next bytes of the message. After an error there are none.
    pub(super) fn receive(&mut self, mut data: &[u8]) -> Result<(), Refused> {
        while let Some((byte, rest)) = data.split_first() {
            if let Step::Skip(end) = self.step {
                let skipped =
                    usize::try_from(end - self.position).unwrap_or(usize::MAX).min(data.len());
                data = &data[skipped..];
                self.position += skipped as u64;
                if self.position == end {
                    self.end_field();
                }
                continue;
            }
            data = rest;
            self.position += 1;
            if let Some(number) = self.varint.add(*byte) {
                self.take_number(number)?;
            }
        }
        Ok(())
    }

    fn take_number(&mut self, number: u64) -> Result<(), Refused> {
        match self.step {
            Step::Tag => {
                self.count(1)?;
                let message = self.levels.last().map_or(usize::MAX, |level| level.message);
                let kind = SCHEMA.kind(message, number >> 3);
                match number & 7 {
                    // No field has the number 0.
                    _ if number < 8 => return Err(Refused::Undecodable),
                    2 => self.step = Step::Length(kind),
                    3 | 4 => return Err(Refused::WireType),
                    6 | 7 => return Err(Refused::Undecodable),
                    _ if matches!(kind, Kind::Message(_)) => return Err(Refused::WireType),
                    0 => self.step = Step::Number,
                    1 => self.skip(8),
                    _ => self.skip(4),
                }
            }
            Step::Length(Kind::Message(message)) => {
                // The outermost message is a level, too.
                if self.levels.len() > MAX_DEPTH {
                    return Err(Refused::Undecodable);
                }
                let end = self.position.saturating_add(number);
                self.levels.push(Level { message, end });
                self.end_field();
            }
            Step::Length(kind) => {
                if kind == Kind::Packed {
                    self.count(number)?;
                }
                self.skip(number);
            }
            Step::Number | Step::Skip(_) => self.end_field(),
        }
        Ok(())
    }

    fn count(&mut self, fields: u64) -> Result<(), Refused> {
        let fields = usize::try_from(fields).unwrap_or(usize::MAX);
        self.left = self.left.checked_sub(fields).ok_or(Refused::TooManyFields)?;
        Ok(())
    }

    fn skip(&mut self, bytes: u64) {
        self.step = Step::Skip(self.position.saturating_add(bytes));
        if bytes == 0 {
            self.end_field();
        }
    }

    /// A field has ended, and with it maybe the message that it is in.
    fn end_field(&mut self) {
        self.step = Step::Tag;
        while self.levels.len() > 1
            && self.levels.last().is_some_and(|level| level.end <= self.position)
        {
            self.levels.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(args: usize, variables: usize) -> Vec<u8> {
        let args = vec![String::new(); args];
        let program = pb::spec::Program::Argv(pb::Argv { args, ..Default::default() });
        let set = (0..variables).map(|n| (n.to_string(), "value".into())).collect();
        let env = pb::Environment { set, ..Default::default() };
        let groups = vec![1; 7];
        let spec = pb::Spec {
            program: Some(program),
            env: Some(env),
            user: Some(pb::User { groups, ..Default::default() }),
            cwd: "/".repeat(9),
            ..Default::default()
        };
        pb::StartRequest { id: "a".into(), spec: Some(spec), ..Default::default() }.encode_to_vec()
    }

    /// Counts a message that comes in pieces of so many bytes and may have so many fields.
    fn count(message: &[u8], fields: usize, piece: usize) -> Result<(), Refused> {
        let request = RequestType::of_method("Start").unwrap();
        let mut counter = FieldCounter::new(request, fields);
        message.chunks(piece).try_for_each(|piece| counter.receive(piece))
    }

    #[test]
    fn every_field_of_every_message_counts() {
        let message = request(5, 3);
        // id, spec, argv, 5 arguments, env, 3 entries with key and value, cwd, user, groups, 7 groups.
        let fields = 1 + 1 + 1 + 5 + 1 + 3 * 3 + 1 + 1 + 1 + 7;
        for piece in 1..=message.len() {
            assert_eq!(count(&message, fields, piece), Ok(()), "{piece}");
            assert_eq!(count(&message, fields - 1, piece), Err(Refused::TooManyFields), "{piece}");
        }
    }

    #[test]
    fn nothing_that_an_encoder_makes_is_refused() {
        let message = request(2, 2);
        let (mut taken, mut undecodable) = (0, 0);
        for (at, byte) in (0..message.len()).flat_map(|at| (0..=u8::MAX).map(move |b| (at, b))) {
            let mut changed = message.clone();
            changed[at] = byte;
            let is_decoded = pb::StartRequest::decode(&changed[..]).is_ok();
            for piece in [1, 3, changed.len()] {
                match count(&changed, 1000, piece) {
                    Ok(()) => taken += usize::from(is_decoded),
                    Err(Refused::WireType) => {}
                    Err(refused) => {
                        assert!(!is_decoded, "byte {at} is {byte:#x}: {refused:?}");
                        undecodable += usize::from(refused == Refused::Undecodable);
                    }
                }
            }
        }
        assert!(taken > 0 && undecodable > 0, "{taken} taken, {undecodable} undecodable");
        assert_eq!(count(&[0xff; 64], 1000, 7), Ok(()));
    }

    #[test]
    fn group_does_not_hide_the_fields_behind_it() {
        // A group of the field 100, in it a spec that cannot be decoded.
        let hidden = [&b"\xa3\x06\x12\x01\x00\xa4\x06"[..], &request(2000, 0)].concat();
        assert!(pb::StartRequest::decode(&hidden[..]).is_ok());
        assert_eq!(count(&hidden, 1000, hidden.len()), Err(Refused::WireType));
        let (wire_type, undecodable) = (Refused::WireType, Refused::Undecodable);
        for (tag, refused) in [
            (0x02, undecodable),
            (0x0b, wire_type),
            (0x0c, wire_type),
            (0x0e, undecodable),
            (0x0f, undecodable),
        ] {
            assert_eq!(count(&[tag], 1000, 1), Err(refused), "{tag:#x}");
        }
    }

    #[test]
    fn map_with_another_wire_type_does_not_hide_fields() {
        // A spec with labels of the wire type of fixed64: the decoder reads the length 0, and then arguments.
        let spec = [&b"\x59\x00"[..], &b"\x12\x02\x0a\x00".repeat(2000)].concat();
        let spec = pb::Spec::decode(&spec[..]).map(|_| spec).unwrap();
        let length = u16::try_from(spec.len()).unwrap();
        let prefix = [0x12, (length & 0x7f) as u8 | 0x80, (length >> 7) as u8];
        let hidden = [&prefix[..], &spec].concat();
        assert!(pb::StartRequest::decode(&hidden[..]).is_ok());
        assert_eq!(count(&hidden, 1000, hidden.len()), Err(Refused::WireType));
    }

    #[test]
    fn every_call_has_a_request_type() {
        for call in crate::access::Call::ALL {
            assert!(RequestType::of_method(call.name).is_some(), "{}", call.name);
        }
    }
}
