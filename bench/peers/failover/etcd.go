package main

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// An etcdMap has an entry for each record. The client has etcd's defaults.
type etcdMap struct {
	client *clientv3.Client
}

func openEtcd(servers []string) (replicated, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: servers, DialTimeout: asking, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	return &etcdMap{client}, nil
}

func (e *etcdMap) append(ctx context.Context, record string) error {
	_, err := e.client.Put(ctx, name+"/"+record, record)
	return err
}

// states asks every server. One that does not answer has no state.
func (e *etcdMap) states(ctx context.Context) map[string]*clientv3.StatusResponse {
	states := make(map[string]*clientv3.StatusResponse)
	for _, endpoint := range e.client.Endpoints() {
		if state, err := e.client.Status(ctx, endpoint); err == nil {
			states[endpoint] = state
		}
	}
	return states
}

func (e *etcdMap) leader(ctx context.Context) (string, error) {
	for endpoint, state := range e.states(ctx) {
		if state.Leader == state.Header.MemberId {
			return endpoint, nil
		}
	}
	return "", errors.New("no server leads")
}

// isWhole returns true if all servers have applied what was in the log of one
// of them before.
func (e *etcdMap) isWhole(ctx context.Context) (bool, error) {
	var written uint64
	for _, state := range e.states(ctx) {
		written = max(written, state.RaftIndex)
	}
	states := e.states(ctx)
	whole := len(states) == replicas
	for _, state := range states {
		whole = whole && state.RaftAppliedIndex >= written
	}
	return whole, nil
}

func (e *etcdMap) read(ctx context.Context) ([]string, error) {
	var records []string
	const page = 10_000
	for from := name + "/"; ; {
		got, err := e.client.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(name+"/")), clientv3.WithLimit(page))
		if err != nil {
			return nil, err
		}
		for _, entry := range got.Kvs {
			records = append(records, string(entry.Value))
		}
		if !got.More {
			return records, nil
		}
		from = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
}
