// Package criproxy stands between a node agent and its runtime, and holds one of the agent's calls until the agent has
// been killed: before the runtime gets it, or when only the answer lacks.
package criproxy
