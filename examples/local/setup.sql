-- The tables of the example. As the owner of the database: psql -f setup.sql postgresql://postgres@localhost:5432/shop
CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, balance numeric(12, 2));
CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint NOT NULL, placed timestamptz NOT NULL);
INSERT INTO customers VALUES (1, 'Ada', 12.50), (2, 'Grace', 0), (3, 'Barbara', 7.25);
INSERT INTO orders VALUES (10, 1, '2026-01-02 10:00+00'), (11, 1, '2026-01-03 09:30+00');

-- Where lakemark writes the rows by which a snapshot finds its place in the log.
CREATE TABLE debezium_signal (id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048));

-- What the connector reads from, and the two users. The passwords are for trying it out.
CREATE PUBLICATION shop FOR TABLE customers, orders, debezium_signal;
CREATE ROLE debezium LOGIN REPLICATION PASSWORD 'debezium';
GRANT USAGE ON SCHEMA public TO debezium;
GRANT SELECT ON customers, orders, debezium_signal TO debezium;
CREATE ROLE lakemark LOGIN PASSWORD 'lakemark';
GRANT USAGE ON SCHEMA public TO lakemark;
GRANT SELECT ON customers, orders TO lakemark;
GRANT INSERT ON debezium_signal TO lakemark;
GRANT pg_read_all_stats TO lakemark;
