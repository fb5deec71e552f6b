package bus

import (
	"errors"
	"regexp"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/logkey"
)

// violation finds operation and subject in the server's "Permissions Violation for Publish to "x"".
var violation = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)permissions violation for (publish|subscription) to "([^"]+)"`)
})

// parseViolation returns the operation, "publish" or "subscribe", and the subject that the bus denied.
func parseViolation(err error) (operation, subj string, ok bool) {
	m := violation().FindStringSubmatch(err.Error())
	if m == nil {
		return "", "", false
	}
	if strings.EqualFold(m[1], "publish") {
		return "publish", m[2], true
	}
	return "subscribe", m[2], true
}

// asyncError is what the connection reports of its own accord.
func (c *Client) asyncError(_ *nats.Conn, sub *nats.Subscription, err error) {
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		operation, subj, ok := parseViolation(err)
		if !ok {
			operation, subj = "publish", ""
		}
		c.metrics.denied.WithLabelValues(operation).Inc()
		c.log.Error("the bus denied what this service is not granted", "operation", operation, "subject", subj,
			logkey.Err, err)
		if operation == "publish" {
			c.deniedPut(subj)
		}
	case errors.Is(err, nats.ErrSlowConsumer) && sub != nil:
		c.mu.Lock()
		defer c.mu.Unlock()
		for w := range c.watches {
			w.overrun(sub)
		}
		c.log.Warn("messages of the bus were dropped: their receiver is too slow", "subject", sub.Subject)
	default:
		c.log.Warn("the bus's connection reports an error", logkey.Err, err)
	}
}

// deniedPut reports to a key's writer that repeating is in vain.
func (c *Client) deniedPut(subj string) {
	bucket, key, ok := subject.ParseEntry(subj)
	if !ok {
		return
	}
	c.mu.Lock()
	w := c.writers[bucket]
	c.mu.Unlock()
	if w != nil {
		w.deny(key)
	}
}
