// Command redis-ping is a probe plugin that sends PING to a Redis server over RESP. It is the example of
// docs/plugins.md.
package main

import "github.com/microlet/microlet/services/prober/plugin"

func main() { plugin.Serve(ping) }
