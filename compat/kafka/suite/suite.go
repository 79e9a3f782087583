// Package suite has the scenarios for all Go clients, as suite.py has them for Python, and prints the
// results.
package suite

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

const (
	ScenarioTime = 90 * time.Second
	WaitTime     = 30 * time.Second
	// QuietTime is the time without records after which no more are expected.
	QuietTime = 400 * time.Millisecond
	startMs   = 1_700_000_000_000
	Earliest  = -2
	Latest    = -1
)

// Skip is the reason why the library does not support a scenario.
type Skip string

func (s Skip) Error() string { return string(s) }

// Refused is the protocol's name of an error that the broker returned.
type Refused string

func (r Refused) Error() string { return string(r) }

type Header struct {
	Key   string
	Value []byte
}

// Record is a record to send, or one that was read. Nil is null; the client sets a TimeMs of 0.
type Record struct {
	Key, Value []byte
	Headers    []Header
	TimeMs     int64
	Partition  int32
	Offset     int64
}

type Security struct{ Mechanism, User, Password, CA string }

type GroupOptions struct {
	// Cooperative and ServerSide select the protocol; without both it is the eager one.
	Cooperative, ServerSide bool
	Instance                string
}

type Committed struct {
	Offset   int64
	Metadata string
}

type Member interface {
	// Poll waits for a moment at most.
	Poll() []Record
	Assignment() []int32
	Commit(offsets map[int32]Committed) error
	Committed(partition int32) (Committed, error)
	Close()
}

type Transaction interface {
	Begin() error
	// Send waits for the acknowledgement of the records.
	Send(topic string, records []Record) error
	SendOffsets(member Member, topic string, offsets map[int32]int64) error
	Commit() error
	Abort() error
	Close()
}

type Group struct {
	State string
	// Partitions are the partitions of each member.
	Partitions [][]int32
}

type Cluster struct {
	ID         string
	Nodes      []int32
	Controller int32
}

// Client lists the features of a library. Missing replaces those that the library lacks.
type Client interface {
	Close()
	// Produce returns the offsets, in the order of the records.
	Produce(topic string, records []Record, codec string, idempotent bool) ([]int64, error)
	// Read returns at least count records, and more until none has arrived for a moment.
	Read(topic string, count int, partition int32, start int64, committed bool) ([]Record, error)
	Offsets(topic string, partition int32) (first, next int64, err error)
	// OffsetAt returns Latest if there is no such record.
	OffsetAt(topic string, partition int32, timeMs int64) (int64, error)
	Member(topic, group string, options GroupOptions) (Member, error)
	Transaction(id string) (Transaction, error)
	Login() error
	Unknown(topic string) error
	CreateTopic(topic string, partitions int32, configs map[string]string) error
	DeleteTopic(topic string) error
	Topics() (map[string]int, error)
	AddPartitions(topic string, total int) error
	Configs(topic string) (map[string]string, error)
	// SetConfig takes nil for the default.
	SetConfig(topic, name string, value *string) error
	DeleteRecords(topic string, partition int32, before int64) error
	Groups() ([]string, error)
	DescribeGroup(group string) (Group, error)
	GroupOffsets(group, topic string, partitions []int32) (map[int32]int64, error)
	SetGroupOffset(group, topic string, partition int32, offset int64) error
	DeleteGroupOffset(group, topic string, partition int32) error
	DeleteGroup(group string) error
	Cluster() (Cluster, error)
	LogBytes(topic string) (int64, error)
}

// Transformer is a client that has transactions of members built in. It doubles four records and commits, then two
// and aborts.
type Transformer interface {
	Transform(id, in, out, group string, double func([]Record) []Record) error
}

const missing = Skip("the library has no such call")

type Missing struct{}

func (Missing) Close()                                            {}
func (Missing) OffsetAt(string, int32, int64) (int64, error)      { return 0, missing }
func (Missing) Transaction(string) (Transaction, error)           { return nil, missing }
func (Missing) DeleteRecords(string, int32, int64) error          { return missing }
func (Missing) SetConfig(string, string, *string) error           { return missing }
func (Missing) SetGroupOffset(string, string, int32, int64) error { return missing }
func (Missing) DeleteGroupOffset(string, string, int32) error     { return missing }
func (Missing) Cluster() (Cluster, error)                         { return Cluster{}, missing }
func (Missing) LogBytes(string) (int64, error)                    { return 0, missing }

// Facts lists the differences between libraries.
type Facts struct {
	Name, Version string
	// Excused are scenarios in which the library also fails with Apache Kafka, each with the known cause.
	Excused map[string]string
	// Denied is the library's error for a wrong password; empty is the protocol's name.
	Denied string
	// NoMetadata is set if the library does not return the text of a committed offset.
	NoMetadata bool
	// EmptyIsNull is set if the library reads zero bytes as null.
	EmptyIsNull bool
	New         func(address string, security *Security) Client
}

type env struct {
	Client
	facts    *Facts
	scenario string
}

// name returns the name of a topic or a group that no other run uses.
func (e *env) name(what string) string {
	return fmt.Sprintf("%s.%s.%d.%s", e.facts.Name, e.scenario, os.Getpid(), what)
}

func (e *env) topic() string { return e.name("topic") }

func (e *env) create(partitions int32) string {
	e.createTopic(e.topic(), partitions, nil)
	return e.topic()
}

func (e *env) createTopic(topic string, partitions int32, configs map[string]string) {
	must(e.CreateTopic(topic, partitions, configs))
	// The response may arrive before all parts of a broker know the topic.
	Until("the topic is listed", func() bool { return got(e.Topics())[topic] == int(partitions) })
}

type failure string

func fail(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func got[T any](value T, err error) T {
	must(err)
	return value
}

var emptyIsNull bool

// same compares the printed forms, in which null is not empty.
func same(found, expected any, what string) {
	if f, e := show(found), show(expected); f != e {
		fail("%s is %.300s, not %.300s", what, f, e)
	}
}

func show(value any) string {
	switch v := value.(type) {
	case []byte:
		if v == nil || emptyIsNull && len(v) == 0 {
			return "null"
		}
		return fmt.Sprintf("%q", v)
	case []Record:
		var out strings.Builder
		for _, r := range v {
			fmt.Fprintf(&out, "%s=%s ", show(r.Key), show(r.Value))
		}
		return out.String()
	case []Header:
		var out strings.Builder
		for _, h := range v {
			fmt.Fprintf(&out, "%s:%s ", h.Key, show(h.Value))
		}
		return out.String()
	default:
		return fmt.Sprint(v)
	}
}

// Until polls until holds returns true, for WaitTime at most.
func Until(what string, holds func() bool) {
	for end := time.Now().Add(WaitTime); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			fail("not within %v: %s", WaitTime, what)
		}
	}
}

func refused(names string, err error) {
	var skip Skip
	if errors.As(err, &skip) {
		panic(err)
	}
	if err == nil {
		fail("not refused, though it should be %s", names)
	}
	if !slices.Contains(strings.Split(names, "|"), err.Error()) {
		fail("refused with %s, not %s", err, names)
	}
}

func numbered(tag string, begin, count int, partition int32) []Record {
	var records []Record
	for i := begin; i < begin+count; i++ {
		key, value := fmt.Appendf(nil, "key-%d", i%7), fmt.Appendf(nil, "%s-%d", tag, i)
		records = append(records, Record{Key: key, Value: value, Partition: partition})
	}
	return records
}

func (e *env) produce(topic string, records []Record) []int64 {
	return got(e.Produce(topic, records, "none", false))
}

func (e *env) read(topic string, count int) []Record {
	return got(e.Read(topic, count, 0, Earliest, false))
}

func upTo(count int) []int64 {
	offsets := make([]int64, count)
	for i := range offsets {
		offsets[i] = int64(i)
	}
	return offsets
}

func codec(name string) func(*env) {
	return func(e *env) {
		topic := e.create(1)
		text := strings.Repeat("the same words again and again ", 20)
		var sent []Record
		for i := range 200 {
			headers := []Header{{"n", fmt.Append(nil, i)}}
			sent = append(sent, Record{Key: fmt.Append(nil, i), Value: fmt.Appendf(nil, "%d %s", i, text), Headers: headers})
		}
		same(got(e.Produce(topic, sent, name, false)), upTo(200), "the offsets")
		found := e.read(topic, 200)
		same(found, sent, "the records read")
		for i := range found {
			same(found[i].Headers, sent[i].Headers, "its headers")
		}
	}
}

func allBytes() []byte {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return all
}

func headers(e *env) {
	topic := e.create(1)
	lists := [][]Header{
		{{"a", []byte("1")}, {"b", []byte("2")}},
		{{"same", []byte("first")}, {"same", []byte("second")}, {"same", []byte("first")}},
		{{"null", nil}, {"empty", []byte{}}, {"binary", allBytes()}},
		{{"größe", []byte("naïve")}},
		{},
	}
	var sent []Record
	for _, list := range lists {
		sent = append(sent, Record{Key: []byte("k"), Value: []byte("v"), Headers: list})
	}
	e.produce(topic, sent)
	found := e.read(topic, len(sent))
	same(len(found), len(sent), "the number of records")
	for i := range found {
		same(found[i].Headers, sent[i].Headers, "headers")
	}
}

func nulls(e *env) {
	topic := e.create(1)
	sent := []Record{
		{Value: []byte("no key")}, {Key: []byte("no value")}, {}, {Key: []byte{}, Value: []byte{}}, {Key: allBytes(), Value: []byte{0}},
	}
	e.produce(topic, sent)
	same(e.read(topic, len(sent)), sent, "the records read")
}

func timestamps(e *env) {
	topic := e.create(1)
	var sent, found []int64
	var records []Record
	for _, at := range []int64{startMs, startMs + 1, startMs - 86_400_000, startMs + 5} {
		sent = append(sent, at)
		records = append(records, Record{Value: []byte("v"), TimeMs: at})
	}
	e.produce(topic, records)
	for _, record := range e.read(topic, len(sent)) {
		found = append(found, record.TimeMs)
	}
	same(found, sent, "the timestamps")
}

func largeRecord(e *env) {
	topic := e.create(1)
	value := make([]byte, 1_000_000)
	for i := range value {
		value[i] = byte(i * (i / 1000) % 251)
	}
	sent := []Record{{Key: []byte("a"), Value: value}, {Key: []byte("b"), Value: value}}
	e.produce(topic, sent)
	found := e.read(topic, 2)
	same(len(found), 2, "the number of records")
	for _, record := range found {
		same(bytes.Equal(record.Value, value), true, "equality with the sent value")
	}
}

func many(count int, idempotent bool) func(*env) {
	return func(e *env) {
		topic := e.create(1)
		sent := numbered("value", 0, count, 0)
		same(got(e.Produce(topic, sent, "none", idempotent)), upTo(count), "the offsets")
		same(e.read(topic, count), sent, "the records read")
	}
}

func fromOffset(e *env) {
	topic := e.create(2)
	e.produce(topic, numbered("other", 0, 5, 0))
	sent := numbered("value", 0, 50, 1)
	e.produce(topic, sent)
	// Offset 17 is in the middle of a batch.
	for _, start := range []int{0, 17, 49} {
		found := got(e.Read(topic, 50-start, 1, int64(start), false))
		same(found, sent[start:], fmt.Sprintf("from %d", start))
		same(found[0].Offset, start, "the first offset")
	}
}

func fromTime(e *env) {
	topic := e.create(1)
	var sent []Record
	for i := range 20 {
		sent = append(sent, Record{Value: fmt.Append(nil, i), TimeMs: startMs + 1000*int64(i)})
	}
	e.produce(topic, sent)
	for at, expected := range map[int64]int64{-5: 0, 7000: 7, 7001: 8, 60_000: Latest} {
		same(got(e.OffsetAt(topic, 0, startMs+at)), expected, fmt.Sprintf("the offset %d ms after the first", at))
	}
	same(got(e.Read(topic, 12, 0, 8, false)), sent[8:], "the records read")
}

func earliestLatest(e *env) {
	topic := e.create(1)
	e.produce(topic, numbered("value", 0, 5, 0))
	first, next, err := e.Offsets(topic, 0)
	must(err)
	same([]int64{first, next}, []int64{0, 5}, "first and next offset")
	same(e.read(topic, 5), numbered("value", 0, 5, 0), "from the earliest")
	same(len(got(e.Read(topic, 0, 0, Latest, false))), 0, "from the latest")
}

// drain polls members until they have count records and no more arrive. Each commits its records.
func drain(members []Member, count int, what string) []Record {
	var found []Record
	last := time.Now()
	for end := last.Add(WaitTime); (len(found) < count || time.Since(last) < QuietTime) && time.Now().Before(end); {
		for _, member := range members {
			next := map[int32]Committed{}
			for _, record := range member.Poll() {
				found = append(found, record)
				next[record.Partition] = Committed{Offset: record.Offset + 1}
			}
			if len(next) > 0 {
				last = time.Now()
				must(member.Commit(next))
			}
		}
	}
	if len(found) != count {
		fail("%s: %d records, not %d", what, len(found), count)
	}
	return found
}

// settled polls members until each has some of the partitions, and each partition has one member.
func settled(members []Member, partitions int, what string) [][]int32 {
	var parts [][]int32
	Until(what, func() bool {
		parts = nil
		var all []int32
		for _, member := range members {
			same(len(member.Poll()), 0, "the number of unexpected records")
			part := slices.Sorted(slices.Values(member.Assignment()))
			if len(part) == 0 {
				return false
			}
			parts, all = append(parts, part), append(all, part...)
		}
		slices.Sort(all)
		return len(all) == partitions && len(slices.Compact(all)) == partitions
	})
	return parts
}

func group(options GroupOptions) func(*env) {
	return func(e *env) {
		const partitions, each = 4, 10
		topic := e.create(partitions)
		lines := func(records []Record) (lines []string) {
			for _, r := range records {
				lines = append(lines, fmt.Sprintf("%d %s", r.Partition, r.Value))
			}
			slices.Sort(lines)
			return lines
		}
		round := func(number int, members ...Member) {
			var sent []Record
			for p := range int32(partitions) {
				sent = append(sent, numbered(fmt.Sprintf("round-%d-%d", number, p), 0, each, p)...)
			}
			e.produce(topic, sent)
			what := fmt.Sprintf("round %d", number)
			same(lines(drain(members, partitions*each, what)), lines(sent), what)
		}
		join := func() Member { return got(e.Member(topic, e.name("group"), options)) }
		first := join()
		defer first.Close()
		round(0, first)
		settled([]Member{first}, partitions, "one member has all partitions")
		second := join()
		settled([]Member{first, second}, partitions, "both members have partitions")
		round(1, first, second)
		second.Close()
		settled([]Member{first}, partitions, "the remaining member has all partitions")
		round(2, first)
	}
}

func groupStatic(e *env) {
	topic := e.create(4)
	join := func(instance string) Member {
		return got(e.Member(topic, e.name("group"), GroupOptions{Instance: instance}))
	}
	first := join("one")
	defer first.Close()
	second := join("two")
	before := settled([]Member{first, second}, 4, "both members have partitions")
	second.Close()
	again := join("two")
	defer again.Close()
	Until("the returning member has partitions", func() bool {
		first.Poll()
		again.Poll()
		same(slices.Sorted(slices.Values(first.Assignment())), before[0], "the partitions of the other member")
		return len(again.Assignment()) > 0
	})
	same(slices.Sorted(slices.Values(again.Assignment())), before[1], "the partitions of the returning member")
	for p := range int32(4) {
		e.produce(topic, numbered("value", 0, 5, p))
	}
	drain([]Member{first, again}, 20, "the records after the member returned")
}

func commitResume(e *env) {
	topic := e.create(1)
	sent := numbered("value", 0, 10, 0)
	e.produce(topic, sent)
	at := Committed{4, "four of ten, café"}
	if e.facts.NoMetadata {
		at.Metadata = ""
	}
	member := got(e.Member(topic, e.name("group"), GroupOptions{}))
	var found []Record
	Until("records", func() bool { found = append(found, member.Poll()...); return len(found) > 0 })
	same(found[:1], sent[:1], "the first record")
	must(member.Commit(map[int32]Committed{0: at}))
	same(got(member.Committed(0)), at, "the committed offset")
	member.Close()
	member = got(e.Member(topic, e.name("group"), GroupOptions{}))
	defer member.Close()
	same(drain([]Member{member}, 6, "the rest"), sent[4:], "the records after the committed offset")
	same(got(member.Committed(0)).Offset, 10, "the last committed offset")
}

func adminTopics(e *env) {
	topic := e.create(2)
	partitions := func() int { return got(e.Topics())[topic] }
	same(partitions(), 2, "partitions")
	refused("TOPIC_ALREADY_EXISTS", e.CreateTopic(topic, 2, nil))
	refused("INVALID_TOPIC_EXCEPTION", e.CreateTopic("not a name!", 1, nil))
	must(e.AddPartitions(topic, 5))
	Until("the topic has five partitions", func() bool { return partitions() == 5 })
	e.produce(topic, numbered("value", 0, 3, 4))
	same(got(e.Read(topic, 3, 4, Earliest, false)), numbered("value", 0, 3, 4), "the records of a new partition")
	refused("INVALID_PARTITIONS", e.AddPartitions(topic, 3))
	must(e.DeleteTopic(topic))
	Until("the topic is deleted", func() bool { return partitions() == 0 })
	refused("UNKNOWN_TOPIC_OR_PARTITION", e.DeleteTopic(topic))
}

func adminConfigs(e *env) {
	topic := e.topic()
	e.createTopic(topic, 1, map[string]string{"retention.ms": "3600000", "cleanup.policy": "delete"})
	value := func(name string) string { return got(e.Configs(topic))[name] }
	was := value("retention.bytes")
	same(value("retention.ms"), "3600000", "retention.ms")
	bytes, soon := "123456789", "soon"
	must(e.SetConfig(topic, "retention.bytes", &bytes))
	Until("retention.bytes is set", func() bool { return value("retention.bytes") == bytes })
	same(value("retention.ms"), "3600000", "retention.ms afterwards")
	must(e.SetConfig(topic, "retention.bytes", nil))
	Until("retention.bytes has its default", func() bool { return value("retention.bytes") == was })
	refused("INVALID_CONFIG", e.SetConfig(topic, "retention.ms", &soon))
}

func adminDeleteRecords(e *env) {
	topic := e.create(1)
	e.produce(topic, numbered("value", 0, 10, 0))
	must(e.DeleteRecords(topic, 0, 4))
	first, next, err := e.Offsets(topic, 0)
	must(err)
	same([]int64{first, next}, []int64{4, 10}, "first and next offset")
	same(e.read(topic, 6), numbered("value", 4, 6, 0), "the records read")
	refused("OFFSET_OUT_OF_RANGE", e.DeleteRecords(topic, 0, 11))
}

func adminGroups(e *env) {
	topic, group := e.create(2), e.name("group")
	e.produce(topic, numbered("value", 0, 5, 0))
	e.produce(topic, numbered("value", 0, 5, 1))
	member := got(e.Member(topic, group, GroupOptions{}))
	drain([]Member{member}, 10, "records")
	same(slices.Contains(got(e.Groups()), group), true, "presence of the group in the list")
	described := got(e.DescribeGroup(group))
	for _, part := range described.Partitions {
		slices.Sort(part)
	}
	same(described, Group{"Stable", [][]int32{{0, 1}}}, "state and assignments")
	member.Close()
	Until("the group is empty", func() bool { return got(e.DescribeGroup(group)).State == "Empty" })
	offsets := func() map[int32]int64 { return got(e.GroupOffsets(group, topic, []int32{0, 1})) }
	same(offsets(), map[int32]int64{0: 5, 1: 5}, "the group's offsets")
	if can(e.SetGroupOffset(group, topic, 0, 2)) {
		same(offsets(), map[int32]int64{0: 2, 1: 5}, "the group's offsets after one was set")
	}
	if can(e.DeleteGroupOffset(group, topic, 1)) {
		same(slices.Collect(maps.Keys(offsets())), []int32{0}, "partitions with offsets after one was deleted")
	}
	must(e.DeleteGroup(group))
	Until("the group is deleted", func() bool { return !slices.Contains(got(e.Groups()), group) })
	refused("GROUP_ID_NOT_FOUND", e.DeleteGroup(group))
}

// can reports whether the library has the call. A call that it has must succeed.
func can(err error) bool {
	if errors.Is(err, missing) {
		return false
	}
	must(err)
	return true
}

func adminCluster(e *env) {
	found := got(e.Cluster())
	if found.ID == "" || !slices.Contains(found.Nodes, found.Controller) {
		fail("%+v", found)
	}
}

func adminLogDirs(e *env) {
	topic := e.create(1)
	e.produce(topic, numbered("value", 0, 100, 0))
	if found := got(e.LogBytes(topic)); found < 100 {
		fail("%d bytes", found)
	}
}

func (e *env) committed(topic string, count int) []Record {
	return got(e.Read(topic, count, 0, Earliest, true))
}

func transactionCommitAbort(e *env) {
	transaction := got(e.Transaction(e.name("id")))
	defer transaction.Close()
	topic := e.create(1)
	var rounds [3][]Record
	for round, finish := range []func() error{transaction.Commit, transaction.Abort, transaction.Commit} {
		rounds[round] = numbered(fmt.Sprintf("round-%d", round), 0, 3, 0)
		must(transaction.Begin())
		must(transaction.Send(topic, rounds[round]))
		if round == 2 {
			same(e.committed(topic, 3), rounds[0], "the committed records during a transaction")
		}
		must(finish())
	}
	Until("the last transaction is committed", func() bool { return len(e.committed(topic, 0)) == 6 })
	same(e.committed(topic, 6), slices.Concat(rounds[0], rounds[2]), "the committed records")
	same(e.read(topic, 9), slices.Concat(rounds[0], rounds[1], rounds[2]), "the records of all transactions")
}

func transactionTransform(e *env) {
	in, out := e.name("in"), e.name("out")
	e.createTopic(in, 1, nil)
	e.createTopic(out, 1, nil)
	e.produce(in, numbered("value", 0, 6, 0))
	doubled := func(records []Record) (doubled []Record) {
		for _, r := range records {
			doubled = append(doubled, Record{Key: r.Key, Value: bytes.Repeat(r.Value, 2)})
		}
		return doubled
	}
	if transformer, is := e.Client.(Transformer); is {
		must(transformer.Transform(e.name("id"), in, out, e.name("group"), doubled))
	} else {
		e.transform(in, out, doubled)
	}
	same(e.committed(out, 4), doubled(numbered("value", 0, 4, 0)), "the committed records")
	member := got(e.Member(in, e.name("group"), GroupOptions{}))
	defer member.Close()
	same(drain([]Member{member}, 2, "the rest"), numbered("value", 4, 2, 0), "the records of a new member")
}

func (e *env) transform(in, out string, doubled func([]Record) []Record) {
	transaction := got(e.Transaction(e.name("id")))
	defer transaction.Close()
	member := got(e.Member(in, e.name("group"), GroupOptions{}))
	defer member.Close()
	var found []Record
	Until("all records", func() bool { found = append(found, member.Poll()...); return len(found) == 6 })
	for _, step := range []struct {
		begin, end int
		finish     func() error
	}{{0, 4, transaction.Commit}, {4, 6, transaction.Abort}} {
		must(transaction.Begin())
		must(transaction.Send(out, doubled(found[step.begin:step.end])))
		must(transaction.SendOffsets(member, in, map[int32]int64{0: int64(step.end)}))
		must(step.finish())
		// The offset is visible after the coordinator has written the result of the transaction.
		Until("the offset is committed", func() bool { return got(member.Committed(0)).Offset == 4 })
	}
}

func transactionFenced(e *env) {
	zombie := got(e.Transaction(e.name("id")))
	defer zombie.Close()
	topic := e.create(1)
	must(zombie.Begin())
	must(zombie.Send(topic, numbered("zombie", 0, 2, 0)))
	successor := got(e.Transaction(e.name("id")))
	defer successor.Close()
	must(successor.Begin())
	must(successor.Send(topic, numbered("successor", 0, 2, 0)))
	err := zombie.Send(topic, numbered("late", 0, 1, 0))
	if err == nil {
		err = zombie.Commit()
	}
	refused("PRODUCER_FENCED|INVALID_PRODUCER_EPOCH", err)
	must(successor.Commit())
	Until("the successor's records are committed", func() bool { return len(e.committed(topic, 0)) == 2 })
	same(e.committed(topic, 2), numbered("successor", 0, 2, 0), "the committed records")
}

func autoCreate(e *env) {
	same(e.produce(e.topic(), numbered("value", 0, 3, 0)), upTo(3), "the offsets")
	same(e.read(e.topic(), 3), numbered("value", 0, 3, 0), "the records read")
}

func unknownTopic(e *env) {
	refused("UNKNOWN_TOPIC_OR_PARTITION", e.Unknown(e.topic()))
	same(got(e.Topics())[e.topic()], 0, "partitions")
}

func tooLarge(e *env) {
	topic := e.topic()
	e.createTopic(topic, 1, map[string]string{"max.message.bytes": "20000"})
	_, err := e.Produce(topic, []Record{{Key: []byte("k"), Value: make([]byte, 50_000)}}, "none", false)
	refused("MESSAGE_TOO_LARGE", err)
	same(e.produce(topic, numbered("value", 0, 3, 0)), upTo(3), "the offsets of others")
	same(e.read(topic, 3), numbered("value", 0, 3, 0), "the records read")
}

func sasl(mechanism string, tls bool) func(*env) {
	return func(e *env) {
		variable, ca := "COMPAT_SASL", ""
		if tls {
			variable, ca = "COMPAT_SASL_TLS", os.Getenv("COMPAT_CA")
		}
		address := os.Getenv(variable)
		if address == "" {
			panic(Skip(variable + " is not set"))
		}
		security := Security{mechanism, os.Getenv("COMPAT_USER"), os.Getenv("COMPAT_PASSWORD"), ca}
		known := env{e.facts.New(address, &security), e.facts, e.scenario}
		defer known.Close()
		must(known.Login())
		topic := known.create(1)
		known.produce(topic, numbered("value", 0, 3, 0))
		same(known.read(topic, 3), numbered("value", 0, 3, 0), "the records read")
		security.Password = "wrong"
		stranger := e.facts.New(address, &security)
		defer stranger.Close()
		denied := e.facts.Denied
		if denied == "" {
			denied = "SASL_AUTHENTICATION_FAILED"
		}
		refused(denied, stranger.Login())
	}
}

var scenarios = []struct {
	name string
	run  func(*env)
}{
	{"codec_none", codec("none")},
	{"codec_gzip", codec("gzip")},
	{"codec_snappy", codec("snappy")},
	{"codec_lz4", codec("lz4")},
	{"codec_zstd", codec("zstd")},
	{"headers", headers},
	{"nulls", nulls},
	{"timestamps", timestamps},
	{"large_record", largeRecord},
	{"many_in_order", many(10_000, false)},
	{"from_offset", fromOffset},
	{"from_time", fromTime},
	{"earliest_latest", earliestLatest},
	{"group_eager", group(GroupOptions{})},
	{"group_cooperative", group(GroupOptions{Cooperative: true})},
	{"group_static", groupStatic},
	{"group_server_side", group(GroupOptions{ServerSide: true})},
	{"commit_resume", commitResume},
	{"admin_topics", adminTopics},
	{"admin_configs", adminConfigs},
	{"admin_delete_records", adminDeleteRecords},
	{"admin_groups", adminGroups},
	{"admin_cluster", adminCluster},
	{"admin_log_dirs", adminLogDirs},
	{"idempotent", many(2000, true)},
	{"transaction_commit_abort", transactionCommitAbort},
	{"transaction_transform", transactionTransform},
	{"transaction_fenced", transactionFenced},
	{"auto_create", autoCreate},
	{"unknown_topic", unknownTopic},
	{"too_large", tooLarge},
	{"sasl_plain", sasl("PLAIN", false)},
	{"sasl_scram_256", sasl("SCRAM-SHA-256", false)},
	{"sasl_scram_512", sasl("SCRAM-SHA-512", false)},
	{"tls_plain", sasl("PLAIN", true)},
	{"tls_scram_256", sasl("SCRAM-SHA-256", true)},
	{"tls_scram_512", sasl("SCRAM-SHA-512", true)},
}

// Main runs the scenarios that the command line names, by default all: PROGRAM HOST:PORT [SCENARIO..]
func Main(facts Facts) {
	if len(os.Args) < 2 {
		fmt.Fprintf(os.Stderr, "usage: %s HOST:PORT [SCENARIO..]\n", os.Args[0])
		os.Exit(2)
	}
	for _, dependency := range buildInfo().Deps {
		if dependency.Path == facts.Version {
			facts.Version = strings.TrimPrefix(dependency.Version, "v")
		}
	}
	fmt.Println("client", facts.Name, facts.Version)
	emptyIsNull = facts.EmptyIsNull
	client := facts.New(os.Args[1], nil)
	failed, known := false, 0
	for _, scenario := range scenarios {
		if wanted := os.Args[2:]; len(wanted) > 0 && !slices.Contains(wanted, scenario.name) {
			continue
		}
		known++
		e := &env{client, &facts, fmt.Sprintf("%s.%d", scenario.name, time.Now().UnixNano()%1e9)}
		line := e.attempt(scenario.name, scenario.run)
		failed = failed || strings.HasPrefix(line, "FAILED")
		fmt.Println(line)
	}
	if wanted := len(os.Args) - 2; wanted > 0 && wanted != known {
		fmt.Fprintln(os.Stderr, "no scenario has this name")
		failed = true
	}
	if failed {
		os.Exit(1)
	}
}

func buildInfo() *debug.BuildInfo {
	if info, is := debug.ReadBuildInfo(); is {
		return info
	}
	return &debug.BuildInfo{}
}

func (e *env) attempt(name string, run func(*env)) string {
	line := make(chan string, 1)
	begin := time.Now()
	go func() {
		defer func() {
			var skip Skip
			switch cause := recover().(type) {
			case nil:
				line <- fmt.Sprintf("ok %s (%.1f s)", name, time.Since(begin).Seconds())
			case failure:
				line <- fmt.Sprintf("FAILED %s: %s", name, cause)
			case error:
				if errors.As(cause, &skip) {
					line <- fmt.Sprintf("skipped %s: %s", name, skip)
					return
				}
				if os.Getenv("COMPAT_TRACE") != "" {
					debug.PrintStack()
				}
				line <- fmt.Sprintf("FAILED %s: %s", name, strings.Join(strings.Fields(cause.Error()), " "))
			default:
				line <- fmt.Sprintf("FAILED %s: %v", name, cause)
			}
		}()
		if why, is := e.facts.Excused[name]; is {
			panic(Skip(why))
		}
		run(e)
	}()
	select {
	case line := <-line:
		return line
	case <-time.After(ScenarioTime):
		return fmt.Sprintf("FAILED %s: not within %v", name, ScenarioTime)
	}
}
