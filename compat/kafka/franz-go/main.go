// Client franz-go: pure Go, the newest versions of every request.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"compat/suite"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type client struct {
	suite.Missing
	address  string
	security *suite.Security
	cl       *kgo.Client
	admin    *kadm.Client
}

func main() {
	suite.Main(suite.Facts{Name: "franz-go", Version: "github.com/twmb/franz-go", New: newClient})
}

func newClient(address string, security *suite.Security) suite.Client {
	c := &client{address: address, security: security}
	cl, err := c.open()
	if err != nil {
		panic(err)
	}
	c.cl, c.admin = cl, kadm.NewClient(cl)
	return c
}

func (c *client) Close() { c.cl.Close() }

func (c *client) open(options ...kgo.Opt) (*kgo.Client, error) {
	options = append([]kgo.Opt{
		kgo.SeedBrokers(c.address), kgo.ProducerBatchMaxBytes(2_000_000), kgo.UnknownTopicRetries(-1),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(50 * time.Millisecond),
	}, options...)
	if s := c.security; s != nil {
		switch s.Mechanism {
		case "PLAIN":
			options = append(options, kgo.SASL(plain.Auth{User: s.User, Pass: s.Password}.AsMechanism()))
		case "SCRAM-SHA-256":
			options = append(options, kgo.SASL(scram.Auth{User: s.User, Pass: s.Password}.AsSha256Mechanism()))
		case "SCRAM-SHA-512":
			options = append(options, kgo.SASL(scram.Auth{User: s.User, Pass: s.Password}.AsSha512Mechanism()))
		}
		if s.CA != "" {
			pem, err := os.ReadFile(s.CA)
			if err != nil {
				return nil, err
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(pem)
			options = append(options, kgo.DialTLSConfig(&tls.Config{RootCAs: roots}))
		}
	}
	return kgo.NewClient(options...)
}

// named converts the library's errors to the protocol's names.
func named(err error) error {
	var known *kerr.Error
	if errors.As(err, &known) {
		return suite.Refused(known.Message)
	}
	return err
}

func within() context.Context {
	ctx, _ := context.WithTimeout(context.Background(), suite.WaitTime)
	return ctx
}

func records(fetches kgo.Fetches) (out []suite.Record) {
	for r := range fetches.RecordsAll() {
		record := suite.Record{Key: r.Key, Value: r.Value, TimeMs: r.Timestamp.UnixMilli(), Partition: r.Partition, Offset: r.Offset}
		for _, h := range r.Headers {
			record.Headers = append(record.Headers, suite.Header{Key: h.Key, Value: h.Value})
		}
		out = append(out, record)
	}
	return out
}

func deliver(cl *kgo.Client, topic string, records []suite.Record) ([]int64, error) {
	var sent []*kgo.Record
	for _, r := range records {
		record := &kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: r.Value}
		if r.TimeMs != 0 {
			record.Timestamp = time.UnixMilli(r.TimeMs)
		}
		for _, h := range r.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		sent = append(sent, record)
	}
	results := cl.ProduceSync(within(), sent...)
	// The results are in the order of the responses, the offsets in that of the records.
	var offsets []int64
	for _, record := range sent {
		offsets = append(offsets, record.Offset)
	}
	return offsets, named(results.FirstErr())
}

func (c *client) Produce(topic string, records []suite.Record, codec string, idempotent bool) ([]int64, error) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	options := []kgo.Opt{kgo.ProducerBatchCompression(codecs[codec]), kgo.AllowAutoTopicCreation()}
	if !idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	cl, err := c.open(options...)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	return deliver(cl, topic, records)
}

func (c *client) Read(topic string, count int, partition int32, start int64, committed bool) ([]suite.Record, error) {
	offset := kgo.NewOffset()
	switch start {
	case suite.Earliest:
		offset = offset.AtStart()
	case suite.Latest:
		offset = offset.AtEnd()
	default:
		offset = offset.At(start)
	}
	options := []kgo.Opt{kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: offset}})}
	if committed {
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	cl, err := c.open(options...)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var found []suite.Record
	poll := func(wait time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		found = append(found, records(cl.PollFetches(ctx))...)
	}
	suite.Until("records", func() bool { poll(200 * time.Millisecond); return len(found) >= count })
	poll(suite.QuietTime)
	return found, nil
}

func (c *client) Offsets(topic string, partition int32) (int64, int64, error) {
	first, err := c.admin.ListStartOffsets(within(), topic)
	if err != nil {
		return 0, 0, named(err)
	}
	next, err := c.admin.ListEndOffsets(within(), topic)
	return first[topic][partition].Offset, next[topic][partition].Offset, named(err)
}

func (c *client) OffsetAt(topic string, partition int32, timeMs int64) (int64, error) {
	// kadm returns the end if there is no such record, so this sends the request of the library's consumer.
	request := kmsg.NewPtrListOffsetsRequest()
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic = topic
	at := kmsg.NewListOffsetsRequestTopicPartition()
	at.Partition, at.Timestamp = partition, timeMs
	asked.Partitions = append(asked.Partitions, at)
	request.Topics = append(request.Topics, asked)
	response, err := request.RequestWith(within(), c.cl)
	if err != nil {
		return 0, named(err)
	}
	found := response.Topics[0].Partitions[0]
	return found.Offset, named(kerr.ErrorForCode(found.ErrorCode))
}

type member struct {
	*client
	cl           *kgo.Client
	topic, group string
	lock         sync.Mutex
	assigned     map[int32]bool
}

func (m *member) note(is bool) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		m.lock.Lock()
		defer m.lock.Unlock()
		for _, p := range partitions[m.topic] {
			if is {
				m.assigned[p] = true
			} else {
				delete(m.assigned, p)
			}
		}
	}
}

func (c *client) Member(topic, group string, options suite.GroupOptions) (suite.Member, error) {
	m := &member{client: c, topic: topic, group: group, assigned: map[int32]bool{}}
	opts := []kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(), kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.SessionTimeout(10 * time.Second), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(m.note(true)), kgo.OnPartitionsRevoked(m.note(false)), kgo.OnPartitionsLost(m.note(false)),
	}
	if options.Cooperative {
		opts = append(opts, kgo.Balancers(kgo.CooperativeStickyBalancer()))
	} else {
		opts = append(opts, kgo.Balancers(kgo.RangeBalancer()))
	}
	if options.ServerSide {
		opts = append(opts, kgo.ServerSideBalancer())
	}
	if options.Instance != "" {
		opts = append(opts, kgo.InstanceID(options.Instance))
	}
	cl, err := c.open(opts...)
	m.cl = cl
	return m, err
}

func (m *member) Poll() []suite.Record {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	return records(m.cl.PollFetches(ctx))
}

func (m *member) Assignment() []int32 {
	m.lock.Lock()
	defer m.lock.Unlock()
	return slices.Collect(maps.Keys(m.assigned))
}

func (m *member) Commit(offsets map[int32]suite.Committed) error {
	at := map[int32]kgo.EpochOffset{}
	for p, offset := range offsets {
		at[p] = kgo.EpochOffset{Epoch: -1, Offset: offset.Offset}
	}
	ctx := kgo.PreCommitFnContext(within(), func(request *kmsg.OffsetCommitRequest) error {
		for t := range request.Topics {
			for p := range request.Topics[t].Partitions {
				at := &request.Topics[t].Partitions[p]
				at.Metadata = kmsg.StringPtr(offsets[at.Partition].Metadata)
			}
		}
		return nil
	})
	var failed error
	m.cl.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{m.topic: at},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
			failed = err
			if err == nil {
				for _, p := range response.Topics[0].Partitions {
					failed = errors.Join(failed, kerr.ErrorForCode(p.ErrorCode))
				}
			}
		})
	return named(failed)
}

func (m *member) Committed(partition int32) (suite.Committed, error) {
	found, err := m.admin.FetchOffsets(within(), m.group)
	at := found[m.topic][partition]
	return suite.Committed{Offset: at.At, Metadata: at.Metadata}, named(err)
}

func (m *member) Close() { m.cl.Close() }

type transaction struct{ cl *kgo.Client }

func (c *client) Transaction(id string) (suite.Transaction, error) {
	cl, err := c.open(kgo.TransactionalID(id), kgo.TransactionTimeout(time.Minute))
	if err == nil {
		// Otherwise the library initializes the producer with the first record.
		_, _, err = cl.ProducerID(within())
	}
	return &transaction{cl}, named(err)
}

func (t *transaction) Begin() error { return named(t.cl.BeginTransaction()) }
func (t *transaction) Send(topic string, records []suite.Record) error {
	_, err := deliver(t.cl, topic, records)
	return err
}
func (t *transaction) SendOffsets(suite.Member, string, map[int32]int64) error {
	panic("Transform has it")
}
func (t *transaction) Commit() error { return named(t.cl.EndTransaction(within(), kgo.TryCommit)) }
func (t *transaction) Abort() error  { return named(t.cl.EndTransaction(within(), kgo.TryAbort)) }
func (t *transaction) Close()        { t.cl.Close() }

func (c *client) Transform(id, in, out, group string, double func([]suite.Record) []suite.Record) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(c.address), kgo.TransactionalID(id), kgo.ConsumerGroup(group), kgo.ConsumeTopics(in),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RequireStableFetchOffsets(), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer session.Close()
	for _, step := range []struct {
		count  int
		finish kgo.TransactionEndTry
	}{{4, kgo.TryCommit}, {2, kgo.TryAbort}} {
		var found []suite.Record
		suite.Until("records", func() bool {
			found = append(found, records(session.PollRecords(within(), step.count-len(found)))...)
			return len(found) == step.count
		})
		if err := session.Begin(); err != nil {
			return named(err)
		}
		if _, err := deliver(session.Client(), out, double(found)); err != nil {
			return err
		}
		committed, err := session.End(within(), step.finish)
		if err != nil || committed != bool(step.finish) {
			return errors.Join(errors.New("the transaction did not end as it should"), named(err))
		}
	}
	return nil
}

func (c *client) Login() error { return named(c.cl.Ping(within())) }

func (c *client) Unknown(topic string) error {
	cl, err := c.open(kgo.UnknownTopicRetries(0))
	if err != nil {
		return err
	}
	defer cl.Close()
	_, err = deliver(cl, topic, []suite.Record{{Value: []byte("v")}})
	return err
}

func (c *client) CreateTopic(topic string, partitions int32, configs map[string]string) error {
	values := map[string]*string{}
	for name, value := range configs {
		values[name] = &value
	}
	_, err := c.admin.CreateTopic(within(), partitions, 1, values, topic)
	return named(err)
}

func (c *client) DeleteTopic(topic string) error {
	done, err := c.admin.DeleteTopics(within(), topic)
	return named(errors.Join(err, done.Error()))
}

func (c *client) Topics() (map[string]int, error) {
	found, err := c.admin.ListTopics(within())
	topics := map[string]int{}
	for name, topic := range found {
		topics[name] = len(topic.Partitions)
	}
	return topics, named(err)
}

func (c *client) AddPartitions(topic string, total int) error {
	done, err := c.admin.UpdatePartitions(within(), total, topic)
	return named(errors.Join(err, done.Error()))
}

func (c *client) Configs(topic string) (map[string]string, error) {
	found, err := c.admin.DescribeTopicConfigs(within(), topic)
	if err != nil {
		return nil, named(err)
	}
	configs := map[string]string{}
	for _, config := range found[0].Configs {
		configs[config.Key] = config.MaybeValue()
	}
	return configs, named(found[0].Err)
}

func (c *client) SetConfig(topic, name string, value *string) error {
	change := kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: value}
	if value == nil {
		change.Op = kadm.DeleteConfig
	}
	done, err := c.admin.AlterTopicConfigs(within(), []kadm.AlterConfig{change}, topic)
	if err != nil {
		return named(err)
	}
	return named(done[0].Err)
}

func (c *client) DeleteRecords(topic string, partition int32, before int64) error {
	var offsets kadm.Offsets
	offsets.AddOffset(topic, partition, before, -1)
	done, err := c.admin.DeleteRecords(within(), offsets)
	return named(errors.Join(err, done.Error()))
}

func (c *client) Groups() ([]string, error) {
	found, err := c.admin.ListGroups(within())
	return found.Groups(), named(err)
}

func (c *client) DescribeGroup(group string) (suite.Group, error) {
	found, err := c.admin.DescribeGroups(within(), group)
	if err != nil {
		return suite.Group{}, named(err)
	}
	described := suite.Group{State: found[group].State}
	for _, member := range found[group].Members {
		assigned, is := member.Assigned.AsConsumer()
		if !is {
			return described, errors.New("a member without an assignment")
		}
		described.Partitions = append(described.Partitions, assigned.Topics[0].Partitions)
	}
	return described, named(found[group].Err)
}

func (c *client) GroupOffsets(group, topic string, _ []int32) (map[int32]int64, error) {
	found, err := c.admin.FetchOffsets(within(), group)
	offsets := map[int32]int64{}
	for p, at := range found[topic] {
		offsets[p] = at.At
	}
	return offsets, named(err)
}

func (c *client) SetGroupOffset(group, topic string, partition int32, offset int64) error {
	var offsets kadm.Offsets
	offsets.AddOffset(topic, partition, offset, -1)
	return named(c.admin.CommitAllOffsets(within(), group, offsets))
}

func (c *client) DeleteGroupOffset(group, topic string, partition int32) error {
	partitions := kadm.TopicsSet{}
	partitions.Add(topic, partition)
	done, err := c.admin.DeleteOffsets(within(), group, partitions)
	return named(errors.Join(err, done.Error()))
}

func (c *client) DeleteGroup(group string) error {
	done, err := c.admin.DeleteGroups(within(), group)
	return named(errors.Join(err, done.Error()))
}

func (c *client) Cluster() (suite.Cluster, error) {
	found, err := c.admin.BrokerMetadata(within())
	return suite.Cluster{ID: found.Cluster, Nodes: found.Brokers.NodeIDs(), Controller: found.Controller}, named(err)
}

func (c *client) LogBytes(topic string) (int64, error) {
	found, err := c.admin.DescribeAllLogDirs(within(), kadm.TopicsSet{topic: {0: {}}})
	var bytes int64
	for _, broker := range found {
		bytes += broker.Size()
	}
	return bytes, named(err)
}
