package test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/bus/bustest"
	"github.com/microlet/microlet/services/internal/bus"
	"github.com/microlet/microlet/services/internal/service"
)

// entrySizes are those of a heartbeat or a probe's result, and of a pod.
var entrySizes = []int{100, 8 << 10}

// BenchmarkEntry is what one put costs with one writer and one reader: until the bus has acknowledged it and the
// reader has heard it. docs/adr/0010 compares it with BenchmarkSignature.
func BenchmarkEntry(b *testing.B) {
	for _, size := range entrySizes {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			dir, err := os.MkdirTemp("", "bus")
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = os.RemoveAll(dir) }()
			cfg := service.Config{RuntimeDir: dir}
			bustest.NKeys(b, cfg.NKeys())
			server, err := bustest.Start(b.Context(), dir, slog.New(slog.DiscardHandler), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer server.Close()
			connect := func(r role.Role) *nats.Conn {
				key, err := nats.NkeyOptionFromSeed(bus.SeedFile(cfg.NKeys(), r))
				if err != nil {
					b.Fatal(err)
				}
				nc, err := nats.Connect("nats://bus", key, nats.SetCustomDialer(socketDialer(cfg.BusSocket())),
					nats.CustomInboxPrefix(subject.Inbox(r)))
				if err != nil {
					b.Fatal(err)
				}
				return nc
			}
			writer, reader := connect(role.Podsync), connect(role.Prober)
			defer writer.Close()
			defer reader.Close()
			heard := make(chan *nats.Msg, 16)
			if _, err := reader.ChanSubscribe(subject.Entries(subject.Pods), heard); err != nil {
				b.Fatal(err)
			}
			if err := reader.Flush(); err != nil {
				b.Fatal(err)
			}
			value, key := bytes.Repeat([]byte("x"), size), subject.Entry(subject.Pods, "a-pod")
			for b.Loop() {
				if _, err := writer.Request(key, value, bound); err != nil {
					b.Fatal(err)
				}
				<-heard
			}
		})
	}
}

// BenchmarkSignature is what signing an entry would cost its writer, and checking it each of its readers.
func BenchmarkSignature(b *testing.B) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range entrySizes {
		value := bytes.Repeat([]byte("x"), size)
		signature, err := pair.Sign(value)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("sign/%dB", size), func(b *testing.B) {
			b.ReportMetric(float64(len(signature)), "bytes/entry")
			for b.Loop() {
				if _, err := pair.Sign(value); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("verify/%dB", size), func(b *testing.B) {
			for b.Loop() {
				if err := pair.Verify(value, signature); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
